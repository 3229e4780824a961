"""The privileges of roles on queues."""

from __future__ import annotations

import builtins
from collections.abc import Sequence

from .._calls import privileges as calls
from .._calls.privileges import Privilege, Verb
from .shell import AsyncShell

QUEUE_VERBS: tuple[Verb, ...] = ("put", "take", "look", "manage")


class AsyncPrivileges:
    """Privileges, as `client.privileges`. All but list() is for the owner of the schema; see the chapter "Security"."""

    def __init__(self, shell: AsyncShell) -> None:
        self._shell = shell

    async def list(self, role: str | None = None, queue: str | None = None) -> builtins.list[Privilege]:
        """The privileges of roles. A role sees its own; a monitor and the owner of the schema see all.

        Args:
            role: only those of this role itself, and not those that it inherits; None for all roles.
            queue: only those of this very queue, and not those of patterns that match its name; None for all.

        Raises:
            ValueError: a name is not valid.
        """
        return await self._shell.run(calls.list_privileges(role, queue))

    async def grant_to(self, role: str, verbs: Sequence[Verb] | None = None, pattern: str = "*") -> None:
        """Let a role use all open queues, or those whose names match a pattern.

        Args:
            role: its name, without quotes.
            verbs: put, take (and settle), look, manage, share, monitor. None: put, take, look and manage, and with the
                pattern `*` also share.
            pattern: 1 to 200 characters; `*` matches any characters, and no other character is special.

        Raises:
            NotAllowed: the client's role does not own the schema.
            ValueError: there is no such role, an argument is not valid, or the verb share was given with another
                pattern than `*`.
        """
        await self._shell.run(calls.grant_to(role, verbs, pattern))

    async def revoke_from(self, role: str, verbs: Sequence[Verb] | None = None, pattern: str = "*") -> None:
        """Undo grant_to with the same arguments, and no other grant. Raises as grant_to."""
        await self._shell.run(calls.revoke_from(role, verbs, pattern))

    async def grant(self, queue: str, role: str, verbs: Sequence[Verb] = QUEUE_VERBS) -> None:
        """Let a role use one queue, which is created if it does not exist. restrict() keeps other roles out of it.

        Args:
            queue: the queue's name.
            role: the role's name, without quotes.
            verbs: put, take (and settle), look, manage, monitor.

        Raises:
            NotAllowed: the client's role does not own the schema.
            ValueError: there is no such role, an argument is not valid, or a verb is share.
        """
        await self._shell.run(calls.grant(queue, role, verbs))

    async def revoke(self, queue: str, role: str, verbs: Sequence[Verb] = QUEUE_VERBS) -> None:
        """Undo grant with the same arguments, and no other grant. Raises NoQueue, and as grant."""
        await self._shell.run(calls.revoke(queue, role, verbs))

    async def restrict(self, queue: str, on: bool = True) -> None:
        """From now on only the roles that were granted this very queue may use it; or, with False, open it again.

        The owner of the schema may use it as before. A queue that does not exist is created.

        Raises:
            NotAllowed: the client's role does not own the schema.
            ValueError: an argument is not valid; or the queue would end by itself, with its session, or by its options
                `auto_delete` or `expires`, and its name be open to every role.
        """
        await self._shell.run(calls.restrict_queue(queue, on))
