"""Calls of 3_tasks/settle.sql: release, bury, touch and time_left."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from .._values import arguments
from .._values.arguments import Seconds
from .attempts import SAID, Report, said
from .call import Call, Fence, Named, Refused, columns, error_text, hasty, refusals, settled
from .options import set_seconds


@dataclass(frozen=True, slots=True)
class Return:
    """The options of a release. Times in seconds. Checked when made."""

    delay: Seconds | None = None
    every: Seconds | None = None
    priority: int | None = None
    error: str | None = None
    hold_lane: bool = False

    def __post_init__(self) -> None:
        set_seconds(self, (("delay", False), ("every", True)))
        arguments.integer("priority", self.priority)
        arguments.flag("hold_lane", self.hold_lane)
        if self.delay and self.every:
            raise ValueError(f"a task is released with a delay or every so often, not both: {self.delay}, {self.every}")


def release(id: int, fence: Fence, how: Return, report: Report | None = None) -> Call[str]:
    """Release a task; `report` says how the attempt failed, if `how` has an error."""
    if report is not None:
        return Call(
            "SELECT state, problem, holder FROM pgqueue.release(id => %s::bigint, token => %s::bigint,"
            " session => %s::int, delay => pg_catalog.make_interval(secs => %s::float),"
            " error => %s::pg_catalog.text, priority => %s::int,"
            " every => pg_catalog.make_interval(secs => %s::float), hold_lane => %s::boolean, counts => %s::boolean,"
            + SAID
            + ")",
            (
                *(id, fence.token, fence.session, how.delay, error_text(how.error), how.priority, how.every),
                *(how.hold_lane, report.counts, *said(report)),
            ),
            settled(id, fence),
        )
    return Call(
        "SELECT state, problem, holder FROM pgqueue.release(id => %s::bigint, token => %s::bigint, session => %s::int,"
        " delay => pg_catalog.make_interval(secs => %s::float), error => %s::pg_catalog.text, priority => %s::int,"
        " every => pg_catalog.make_interval(secs => %s::float), hold_lane => %s::boolean)",
        (id, fence.token, fence.session, how.delay, error_text(how.error), how.priority, how.every, how.hold_lane),
        settled(id, fence),
    )


def touch(id: int, fence: Fence, more: Seconds | None) -> Call[tuple[str, datetime | None]]:
    """Give the holder more time: the state, and the deadline from now on."""
    state = settled(id, fence)
    return Call(
        "SELECT state, problem, holder, deadline"
        " FROM pgqueue.touch(id => %s::bigint, token => %s::bigint, session => %s::int,"
        " more => pg_catalog.make_interval(secs => %s::float))",
        (id, fence.token, fence.session, arguments.seconds("more", more)),
        lambda rows: (state([row[:3] for row in rows]), rows[0][3]),
    )


def bury(
    id: int, fence: Fence, error: str | None, priority: int | None = None, report: Report | None = None
) -> Call[str]:
    return Call(
        "SELECT state, problem, holder FROM pgqueue.bury(id => %s::bigint, token => %s::bigint,"
        " error => %s::pg_catalog.text, priority => %s::int," + SAID + ")",
        (id, fence.token, error_text(error), arguments.integer("priority", priority), *said(report)),
        settled(id, fence),
    )


def time_left(takes: Sequence[tuple[int, int]]) -> Call[dict[int, float | None]]:
    """Seconds until the deadline, by task; None if there is no deadline. A take that is over has no entry."""
    return Call(
        "SELECT id, seconds FROM pgqueue.time_left(ids => %s::bigint[], tokens => %s::bigint[])",
        ([id for id, _ in takes], [token for _, token in takes]),
        lambda rows: dict(rows),
    )


def release_many(tasks: Named, fence: Fence, *, patient: bool = True) -> Call[list[Refused]]:
    """Release tasks as they are; `patient`: wait for those that another transaction has locked."""
    return Call(
        "SELECT id, state, problem, holder FROM pgqueue.release_many("
        "ids => %s::pg_catalog.text::bigint[], tokens => %s::pg_catalog.text::bigint[], session => "
        + ("%s::int)" if patient else f"{hasty('%s::int')})"),
        (*columns(tasks), fence.session),
        refusals,
    )


def put_off_many(tasks: Sequence[tuple[int, int, float]]) -> Call[list[Refused]]:
    """Release tasks of a worker, by id, token and delay in seconds; their lanes wait for them.

    As fail_many: in one statement, in the order of the ids, and none waits for another transaction's lock.
    """
    ids, tokens, delays = zip(*sorted(tasks), strict=True)
    return Call(
        "SELECT asked.id, s.state, s.problem, s.holder"
        " FROM ROWS FROM (pg_catalog.unnest(%s::bigint[]), pg_catalog.unnest(%s::bigint[]),"
        " pg_catalog.unnest(%s::float[])) asked(id, token, delay),"
        f" LATERAL pgqueue.release(id => asked.id, token => {hasty('asked.token')},"
        " delay => pg_catalog.make_interval(secs => asked.delay), hold_lane => true) s"
        " WHERE s.problem IS NOT NULL",
        (list(ids), list(tokens), list(delays)),
        refusals,
    )
