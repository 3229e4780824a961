"""Calls of 3_tasks/ack.sql."""

from __future__ import annotations

from .call import REFUSALS, SETTLED, Call, Fence, Named, Refused, call, columns, in_haste, refusals, settled


def ack(id: int, fence: Fence, puts: str | None = None) -> Call[str]:
    """Ack a task. `puts` is a JSON array of the tasks that the ack puts."""
    read = settled(id, fence)
    if puts is None:
        return call("ack", SETTLED, read, id=id, token=fence.token, session=fence.session)
    return call("ack", SETTLED, read, id=id, token=fence.token, session=fence.session, puts=puts)


def ack_many(tasks: Named, fence: Fence, *, patient: bool = True) -> Call[list[Refused]]:
    """Ack tasks; `patient`: wait for those that another transaction has locked."""
    ids, tokens = columns(tasks)
    session = fence.session if patient else in_haste(fence.session)
    return call("ack_many", REFUSALS, refusals, ids=ids, tokens=tokens, session=session)
