"""Calls of 5_verbs/settle/ack.sql."""

from __future__ import annotations

from .call import REFUSALS, SETTLED, Call, Fence, Named, Refused, call, columns, hasty, refusals, settled, shaped
from .casts import INT

_ACK = shaped("ack", SETTLED, "id", "token", "session")
_ACK_MANY = shaped("ack_many", REFUSALS, "ids", "tokens", "session")
_ACK_MANY_IN_HASTE = shaped("ack_many", REFUSALS, "ids", "tokens", "session", session=hasty(INT))


def ack(id: int, fence: Fence, puts: str | None = None) -> Call[str]:
    """Ack a task. `puts` is a JSON array of the tasks that the ack puts."""
    if puts is None:
        return Call(_ACK.sql, (id, fence.token, fence.session), settled(id, fence), False, _ACK)
    return call("ack", SETTLED, settled(id, fence), **fence.of(id), puts=puts)


def ack_many(tasks: Named, fence: Fence, *, patient: bool = True) -> Call[list[Refused]]:
    """Ack tasks; `patient`: wait for those that another transaction has locked."""
    ids, tokens = columns(tasks)
    shape = _ACK_MANY if patient else _ACK_MANY_IN_HASTE
    return Call(shape.sql, (ids, tokens, fence.session), refusals, False, shape)
