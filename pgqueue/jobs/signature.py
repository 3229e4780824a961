"""The signature of a job: its parameters as they were declared, and the arguments of a call by their names.

Arguments are stored by name, so that a task says itself which value is which, and SQL and other languages can put it.
Hence a job's parameters all have names: *args, **kwargs and positional-only parameters are refused.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import BadArguments

TASK = "task"  # a parameter of this name gets the Task, and is no argument
REFUSED = {
    inspect.Parameter.VAR_POSITIONAL: "*{}",
    inspect.Parameter.VAR_KEYWORD: "**{}",
    inspect.Parameter.POSITIONAL_ONLY: "the positional-only parameter {}",
}


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter: its annotation, resolved, and whether a task may leave it out. `default` counts only then."""

    name: str
    annotation: Any
    optional: bool
    default: Any = None


class Signature:
    """The parameters of a job.

    Attributes:
        parameters: those that are arguments of a task, by name, in their order.
        wants_task: whether the function gets its Task, as a parameter named `task`.
        returns: the annotation of the result; Any without one.

    Raises:
        ValueError: a parameter cannot be one of a job, or an annotation cannot be resolved. Names the place.
    """

    def __init__(self, function: Callable[..., Any], job: str, local_names: Mapping[str, Any] | None = None) -> None:
        self.job = job
        found = inspect.signature(function)
        if why := _no_job(function, list(found.parameters)):
            raise ValueError(f"job {job} ({place(function)}) {why}")
        for parameter in found.parameters.values():
            if parameter.kind in REFUSED:
                what = REFUSED[parameter.kind].format(parameter.name)
                raise ValueError(
                    f"job {job} ({place(function)}) has {what}, but the arguments of a task are named: give each"
                    " parameter a name of its own"
                )
        hints = _hints(function, job, local_names)
        self.wants_task = TASK in found.parameters
        self.parameters = {
            name: Parameter(name, hints.get(name, Any), one.default is not one.empty, one.default)
            for name, one in found.parameters.items()
            if name != TASK
        }
        self.returns = hints.get("return", Any)
        self._positional = [
            name
            for name, one in found.parameters.items()
            if one.kind is one.POSITIONAL_OR_KEYWORD and name in self.parameters
        ]
        self._required = frozenset(name for name, one in self.parameters.items() if not one.optional)

    def schema(self) -> str:
        """The parameters as text."""
        return repr([(name, one.optional, one.annotation) for name, one in sorted(self.parameters.items())])

    def named(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """The arguments of a call by name, defaults left out. Raises BadArguments: one is missing, unknown or twice."""
        if args:
            if len(args) > len(self._positional):
                takes = f"takes {len(self._positional)} positional arguments, not {len(args)}"
                raise BadArguments(self.job, "$.args", takes)
            given = dict(zip(self._positional, args, strict=False))
            if twice := given.keys() & kwargs.keys():
                raise BadArguments(self.job, f"$.args.{min(twice)}", "is given twice")
            given.update(kwargs)
        else:
            given = kwargs
        self.check_names(given)
        return given

    def check_names(self, given: Mapping[str, Any]) -> None:
        """Raises BadArguments, which names every argument that is missing or unknown."""
        if not (given.keys() <= self.parameters.keys() and self._required <= given.keys()):
            raise BadArguments(self.job, "$.args", self.difference(given))

    def difference(self, given: Mapping[str, Any]) -> str:
        """The names that the arguments lack or have beyond the parameters, in words; empty if they fit."""
        missing = [repr(name) for name in self.parameters if name in self._required and name not in given]
        unknown = sorted(repr(name) for name in given if name not in self.parameters)
        parts = [
            f"{what} {', '.join(names)}" for what, names in (("lacks", missing), ("has unknown", unknown)) if names
        ]
        takes = ", ".join(f"{name}=" if one.optional else name for name, one in self.parameters.items()) or "none"
        return f"{' and '.join(parts)} (its parameters: {takes})" if parts else ""


def _no_job(function: Callable[..., Any], parameters: list[str]) -> str | None:
    """Why a function cannot be a job; None: it can."""
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        return "is a generator function, whose call runs nothing: return a list, or put a task for each value"
    within = getattr(function, "__qualname__", "").rpartition(".")[0]
    if within and not within.endswith("<locals>") and parameters[:1] in (["self"], ["cls"]):
        return f"is a method, and a worker has no {parameters[0]} for it: use a function, or a staticmethod"
    return None


def place(function: Callable[..., Any]) -> str:
    """Where a function is defined, as `shop.py:12`."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code else repr(function)


def _hints(function: Callable[..., Any], job: str, local_names: Mapping[str, Any] | None) -> dict[str, Any]:
    """The annotations, as types. A string is looked up in the function's module, then where it was registered."""
    try:
        return typing.get_type_hints(function, localns=dict(local_names or {}), include_extras=True)
    except Exception as error:
        bad = _unresolvable(function, local_names)
        raise ValueError(
            f"job {job} ({place(function)}): the annotation{bad} cannot be resolved: {error}. A type that is imported"
            " under TYPE_CHECKING only is not there at run time"
        ) from None


def _unresolvable(function: Callable[..., Any], local_names: Mapping[str, Any] | None) -> str:
    for name, annotation in getattr(function, "__annotations__", {}).items():
        one = type("Annotated", (), {"__annotations__": {name: annotation}, "__module__": function.__module__})
        try:
            typing.get_type_hints(one, getattr(function, "__globals__", None), dict(local_names or {}))
        except Exception:
            return f" {annotation!r} of {'the result' if name == 'return' else f'parameter {name!r}'}"
    return ""


def is_async(function: Callable[..., Any]) -> bool:
    """Whether it is a coroutine function, or an object with an async __call__."""
    # callable(), which B004 suggests, does not tell whether __call__ is async.
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004
