"""The audit trail."""

from __future__ import annotations

import builtins
from contextlib import AbstractContextManager

from .._calls import audit as calls
from .._calls.audit import Deed
from .shell import AsyncShell


class AsyncAudit:
    """The audit trail, as `client.audit`: the calls of operators' verbs, except those that found no task to change."""

    def __init__(self, shell: AsyncShell) -> None:
        self._shell = shell

    async def list(self, queue: str | None = None, n: int = 100) -> builtins.list[Deed]:
        """The recorded calls, the newest first. A role sees its own; a monitor and the owner of the schema see all.

        Args:
            queue: only those about this queue, by the name that it had; None for all.
            n: how many at most.

        Raises:
            ValueError: an argument is not valid.
        """
        return await self._shell.run(calls.list_deeds(queue, n))

    def acting(self, actor: str) -> AbstractContextManager[None]:
        """A context manager: calls in it, of this thread or asyncio task and by any client, name this actor.

        For an application whose users share its role, for example `with client.audit.acting("ada"):` around a pause of
        a queue. The audit trail shows the actor beside the role, and does not check it. On a connection of the
        caller's (`conn=`) the name stays until its transaction ends.

        Args:
            actor: a text of 1 to 200 characters.

        Raises:
            ValueError: the actor is not valid.
        """
        return calls.acting(actor)
