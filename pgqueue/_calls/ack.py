"""Calls of 3_tasks/ack.sql."""

from __future__ import annotations

from .call import REFUSALS, SETTLED, Call, Fence, Named, Refused, call, columns, in_haste, refusals, settled, shaped

_ACK = shaped("ack", SETTLED, "id", "token", "session")


def ack(id: int, fence: Fence, puts: str | None = None) -> Call[str]:
    """Ack a task. `puts` is a JSON array of the tasks that the ack puts."""
    if puts is None:
        return Call(_ACK.sql, (id, fence.token, fence.session), settled(id, fence), False, _ACK)
    return call("ack", SETTLED, settled(id, fence), **fence.of(id), puts=puts)


def ack_many(tasks: Named, fence: Fence, *, patient: bool = True) -> Call[list[Refused]]:
    """Ack tasks; `patient`: wait for those that another transaction has locked."""
    ids, tokens = columns(tasks)
    session = fence.session if patient else in_haste(fence.session)
    return call("ack_many", REFUSALS, refusals, ids=ids, tokens=tokens, session=session)
