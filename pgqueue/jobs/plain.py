"""Arguments without pydantic: JSON's own types, whose outermost type is checked.

An annotation that is no type of JSON is refused at registration. Without that refusal a datetime, for example, would be
refused at each put, and a dataclass would be read back as a dict.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Callable
from typing import Annotated, Any, Literal, NotRequired, Required, Union

from .._values import data
from ..errors import BadArguments, BadData
from .signature import Parameter, Signature, place

NoneType = type(None)
SIMPLE = {str: (str,), int: (int,), float: (float, int), bool: (bool,), NoneType: (NoneType,)}
ANYTHING = (object,)
NAMES = {NoneType: "null", dict: "an object", list: "an array", str: "a string", bool: "a boolean"}


class Plain:
    """A codec for JSON's own types; see Codec."""

    def __init__(self, signature: Signature, function: Callable[..., Any], keeps_result: bool) -> None:
        self._signature = signature
        self._kinds = {one.name: _kinds(one, signature.job, function) for one in signature.parameters.values()}
        for one in signature.parameters.values():
            if one.optional:
                _check_default(one, self._kinds[one.name], signature.job, function)
        if keeps_result:
            _kinds(Parameter("return", signature.returns, False), signature.job, function)

    def dump(self, values: dict[str, Any]) -> dict[str, Any]:
        self._check(values)
        return values

    def load(self, text: str) -> dict[str, Any]:
        return self.load_args(data.decode(text).get("args", {}))

    def load_args(self, args: object) -> dict[str, Any]:
        if not isinstance(args, dict):
            raise BadArguments(self._signature.job, "$.args", f"must be an object, not {_named(args)}")
        self._signature.check_names(args)
        self._check(args)
        return args

    def result(self, value: Any) -> Any:
        return value

    def schema(self) -> str:
        return self._signature.schema()

    def _check(self, values: dict[str, Any]) -> None:
        for name, value in values.items():
            if not _fits(value, kinds := self._kinds[name]):
                wanted = " or ".join(_name(kind) for kind in kinds)
                raise BadArguments(self._signature.job, f"$.args.{name}", f"must be {wanted}, not {_named(value)}")


def _fits(value: object, kinds: tuple[type, ...]) -> bool:
    return isinstance(value, kinds) and not (isinstance(value, bool) and bool not in kinds and object not in kinds)


def _kinds(parameter: Parameter, job: str, function: Callable[..., Any]) -> tuple[type, ...]:
    """The outermost types that a value may have. Raises ValueError for an annotation that is no type of JSON."""
    found = _outermost(parameter.annotation)
    if found is None:
        raise ValueError(
            f"job {job} ({place(function)}): {_what(parameter)} is annotated with {_spelled(parameter.annotation)},"
            " which is no type of JSON: `pip install 'pgqueue-core[jobs]'` for it, or use str, int, float, bool, list,"
            " dict or None"
        )
    return found


def _outermost(annotation: Any) -> tuple[type, ...] | None:
    if annotation is Any or annotation is object:
        return ANYTHING
    if annotation is None:
        return (NoneType,)
    if annotation in SIMPLE:
        return SIMPLE[annotation]
    origin, inner = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (Annotated, Required, NotRequired):
        return _outermost(inner[0])
    if origin is Literal:
        return _all([_outermost(type(one)) for one in inner])
    if origin in (Union, types.UnionType):
        return _all([_outermost(one) for one in inner])
    if (origin or annotation) is list and (not inner or _outermost(inner[0])):
        return (list,)
    if (origin or annotation) is dict and (not inner or (inner[0] is str and _outermost(inner[1]))):
        return (dict,)
    if typing.is_typeddict(annotation):
        hints = typing.get_type_hints(annotation, include_extras=True).values()
        return (dict,) if all(_outermost(one) for one in hints) else None
    return None


def _all(found: list[tuple[type, ...] | None]) -> tuple[type, ...] | None:
    return None if None in found else tuple(dict.fromkeys(kind for one in found for kind in one or ()))


def _check_default(parameter: Parameter, kinds: tuple[type, ...], job: str, function: Callable[..., Any]) -> None:
    try:
        data.encode(parameter.default)
    except BadData as error:
        why = error.reason
    else:
        if _fits(parameter.default, kinds):
            return
        why = f"it is not {' or '.join(_name(kind) for kind in kinds)}"
    raise ValueError(
        f"job {job} ({place(function)}): the default of {_what(parameter)}, {parameter.default!r}, cannot be an"
        f" argument: {why}"
    )


def _what(parameter: Parameter) -> str:
    return "its result" if parameter.name == "return" else f"parameter {parameter.name!r}"


def _spelled(annotation: Any) -> str:
    return annotation.__name__ if isinstance(annotation, type) else str(annotation)


def _name(kind: type) -> str:
    return NAMES.get(kind, kind.__name__)


def _named(value: object) -> str:
    return _name(type(value))
