"""Calls of 3_tasks/settle.sql: release, bury and touch."""

from __future__ import annotations

from dataclasses import dataclass

from .._values import arguments
from .._values.arguments import Seconds
from .call import Call, Fence, Named, Refused, columns, error_text, refusals, settled
from .options import set_seconds


@dataclass(frozen=True, slots=True)
class Return:
    """The options of a release. Times in seconds. Checked when made."""

    delay: Seconds | None = None
    every: Seconds | None = None
    priority: int | None = None
    error: str | None = None

    def __post_init__(self) -> None:
        set_seconds(self, (("delay", False), ("every", True)))
        arguments.integer("priority", self.priority)
        if self.delay and self.every:
            raise ValueError(f"a task is released with a delay or every so often, not both: {self.delay}, {self.every}")


def release(id: int, fence: Fence, how: Return) -> Call[str]:
    return Call(
        "SELECT state, problem, holder FROM pgqueue.release(id => %s::int8, token => %s::int8, session => %s::int,"
        " delay => make_interval(secs => %s::float8), error => %s::text, priority => %s::int,"
        " every => make_interval(secs => %s::float8))",
        (id, fence.token, fence.session, how.delay, error_text(how.error), how.priority, how.every),
        settled(id, fence),
    )


def touch(id: int, fence: Fence, more: Seconds | None) -> Call[str]:
    return Call(
        "SELECT state, problem, holder FROM pgqueue.touch(id => %s::int8, token => %s::int8, session => %s::int,"
        " more => make_interval(secs => %s::float8))",
        (id, fence.token, fence.session, arguments.seconds("more", more)),
        settled(id, fence),
    )


def bury(id: int, fence: Fence, error: str | None, priority: int | None = None) -> Call[str]:
    return Call(
        "SELECT state, problem, holder FROM pgqueue.bury(id => %s::int8, token => %s::int8, error => %s::text,"
        " priority => %s::int)",
        (id, fence.token, error_text(error), arguments.integer("priority", priority)),
        settled(id, fence),
    )


def release_many(tasks: Named, fence: Fence) -> Call[list[Refused]]:
    return Call(
        "SELECT id, state, problem, holder"
        " FROM pgqueue.release_many(ids => %s::int8[], tokens => %s::int8[], session => %s::int)",
        (*columns(tasks), fence.session),
        refusals,
    )
