"""Calls of 3_tasks/ack.sql."""

from __future__ import annotations

from .call import Call, Fence, Named, Refused, columns, hasty, refusals, settled


def ack(id: int, fence: Fence, puts: str | None = None) -> Call[str]:
    """Ack a task. `puts` is a JSON array of the tasks that the ack puts."""
    if puts is None:
        return Call(
            "SELECT state, problem, holder FROM pgqueue.ack(id => %s::bigint, token => %s::bigint, session => %s::int)",
            (id, fence.token, fence.session),
            settled(id, fence),
        )
    return Call(
        "SELECT state, problem, holder FROM pgqueue.ack(id => %s::bigint, token => %s::bigint, session => %s::int,"
        " puts => %s::pg_catalog.jsonb)",
        (id, fence.token, fence.session, puts),
        settled(id, fence),
    )


def ack_many(tasks: Named, fence: Fence, *, patient: bool = True) -> Call[list[Refused]]:
    """Ack tasks; `patient`: wait for those that another transaction has locked."""
    return Call(
        "SELECT id, state, problem, holder FROM pgqueue.ack_many("
        "ids => %s::pg_catalog.text::bigint[], tokens => %s::pg_catalog.text::bigint[], session => "
        + ("%s::int)" if patient else f"{hasty('%s::int')})"),
        (*columns(tasks), fence.session),
        refusals,
    )
