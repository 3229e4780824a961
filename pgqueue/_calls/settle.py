"""Calls of 5_verbs/settle/settle.sql: release, bury, touch and time_left."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from .._values import arguments
from .._values.arguments import Seconds
from .attempts import Report, said
from .call import (
    REFUSALS,
    SETTLED,
    Call,
    Fence,
    Named,
    Refused,
    Rows,
    call,
    columns,
    error_text,
    hasty,
    in_haste,
    query,
    refusals,
    settled,
    shaped,
    then_without_haste,
)
from .options import check, option, positive_seconds


@dataclass(frozen=True, slots=True)
class Return:
    """The options of a release. Times in seconds. Checked when made."""

    delay: Seconds | None = option(arguments.seconds)
    every: Seconds | None = option(positive_seconds)
    priority: int | None = option(arguments.integer)
    error: str | None = None
    hold_lane: bool = option(arguments.flag, False)

    def __post_init__(self) -> None:
        check(self)
        if self.delay and self.every:
            raise ValueError(f"a task is released with a delay or every so often, not both: {self.delay}, {self.every}")


_RELEASE = shaped("release", SETTLED, "id", "token", "session", "delay", "error", "priority", "every", "hold_lane")


def release(id: int, fence: Fence, how: Return, report: Report | None = None) -> Call[str]:
    """Release a task; `report` says how the attempt failed, if `how` has an error."""
    if report is None:
        proof = (id, fence.token, fence.session)
        args = (*proof, how.delay, error_text(how.error), how.priority, how.every, how.hold_lane)
        return Call(_RELEASE.sql, args, settled(id, fence), False, _RELEASE)
    return call(
        "release",
        SETTLED,
        settled(id, fence),
        **fence.of(id),
        delay=how.delay,
        error=error_text(how.error),
        priority=how.priority,
        every=how.every,
        hold_lane=how.hold_lane,
        counts=report.counts,
        **said(report),
    )


_TOUCH = shaped("touch", f"{SETTLED}, deadline", "id", "token", "session", "more")


def touch(id: int, fence: Fence, more: Seconds | None) -> Call[tuple[str, datetime | None]]:
    """Give the holder more time: the state, and the deadline from now on."""
    state = settled(id, fence)

    def read(rows: Rows) -> tuple[str, datetime | None]:
        return state([row[:3] for row in rows]), rows[0][3]

    args = (id, fence.token, fence.session, arguments.seconds("more", more))
    return Call(_TOUCH.sql, args, read, False, _TOUCH)


def bury(
    id: int, fence: Fence, error: str | None, priority: int | None = None, report: Report | None = None
) -> Call[str]:
    return call(
        "bury",
        SETTLED,
        settled(id, fence),
        id=id,
        token=fence.token,
        error=error_text(error),
        priority=arguments.integer("priority", priority),
        **said(report),
    )


def time_left(takes: Sequence[tuple[int, int]]) -> Call[dict[int, float | None]]:
    """Seconds until the deadline, by task; None if there is no deadline. A take that is over has no entry."""
    ids, tokens = [id for id, _ in takes], [token for _, token in takes]
    return call("time_left", "id, seconds", lambda rows: dict(rows), ids=ids, tokens=tokens)


def release_many(tasks: Named, fence: Fence, *, patient: bool = True) -> Call[list[Refused]]:
    """Release tasks as they are; `patient`: wait for those that another transaction has locked."""
    ids, tokens = columns(tasks)
    session = fence.session if patient else in_haste(fence.session)
    return call("release_many", REFUSALS, refusals, ids=ids, tokens=tokens, session=session)


def put_off_many(tasks: Sequence[tuple[int, int, float]]) -> Call[list[Refused]]:
    """Release tasks of a worker, by id, token and delay in seconds; their lanes wait for them.

    With counts false the delay is the worker's, and a queue of a type without delays has it too. As fail_many: in one
    statement, in the order of the ids, and none waits for another transaction's lock.
    """
    ids, tokens, delays = zip(*sorted(tasks), strict=True)
    return query(
        then_without_haste(
            "SELECT asked.id, s.state, s.problem, s.holder"
            " FROM ROWS FROM (pg_catalog.unnest(%s::bigint[]), pg_catalog.unnest(%s::bigint[]),"
            " pg_catalog.unnest(%s::float[])) asked(id, token, delay),"
            f" LATERAL pgqueue.release(id => asked.id, token => {hasty('asked.token')},"
            " delay => pg_catalog.make_interval(secs => asked.delay), hold_lane => true, counts => false) s"
            " WHERE s.problem IS NOT NULL"
        ),
        (list(ids), list(tokens), list(delays)),
        refusals,
    )
