"""The options of a put that make its task part of a flow: the tasks that it waits for, and its batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypedDict

from .._values import arguments
from .options import TaskOptions


class Deferred:
    """The base of a task that is not put yet, which another one in the same call can be put after: a Put."""

    __slots__ = ()


class HasId(Protocol):
    """A task, or a batch."""

    @property
    def id(self) -> int: ...


After = Sequence[HasId | Deferred | int | str] | HasId | Deferred | int | str
OnFailure = Literal["wait", "bury", "run"]


class FlowArguments(TypedDict, total=False):
    """The keyword arguments of a put into a flow; Queue.put explains them."""

    after: After | None
    on_failure: OnFailure | None
    batch: HasId | int | None


@dataclass(frozen=True, slots=True)
class FlowOptions(TaskOptions):
    """The predecessors of a task, and its batch. `after` becomes ids, and puts that are not put yet; `batch` an id."""

    after: tuple[Any, ...] | None = None
    on_failure: OnFailure | None = None
    batch: Any = None

    def __post_init__(self) -> None:
        TaskOptions.__post_init__(self)
        if self.after is None and self.batch is None and self.on_failure is None:
            return
        if self.on_failure not in (None, "wait", "bury", "run"):
            raise ValueError(f"on_failure must be wait, bury or run, not {self.on_failure!r}")
        if self.after is not None:
            given = self.after if isinstance(self.after, list | tuple) else (self.after,)
            arguments.elements("after", len(given))
            others = tuple(one if isinstance(one, Deferred) else _id(one) for one in given)
            object.__setattr__(self, "after", others or None)
        if self.batch is not None:
            object.__setattr__(self, "batch", _id(self.batch))

    @property
    def waits(self) -> bool:
        """Whether the task waits for others."""
        return self.after is not None

    @property
    def in_flow(self) -> bool:
        return self.after is not None or self.batch is not None

    @property
    def ids(self) -> list[int]:
        """The ids that it waits for. Raises ValueError for a task that is not put yet."""
        for one in self.after or ():
            if isinstance(one, Deferred):
                raise ValueError("a Put in `after` is not put yet: put both in one call, by put_graph")
        return list(self.after or ())


def _id(given: Any) -> int:
    return arguments.task_id(getattr(given, "id", given))
