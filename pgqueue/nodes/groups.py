"""Groups of processes: who is there, as a recipe on ephemeral nodes. Both shells."""

from __future__ import annotations

import contextlib
import threading
from typing import Any, Self

from .. import arguments
from ..base import mirrors
from ..calls import nodes as calls
from ..calls.nodes import Member, Node
from ..ephemeral import AsyncEphemeral, Ephemeral
from ..errors import ClosedError, NoNode
from ..flows import Flow
from ..listener import Listener
from ..shell import AsyncShell, LoopSignal, Shell
from ..waits import MakeSignal, TimeLeft
from .watches import Observer


class Membership:
    """This client's place in a group, from Client.join(). It ends by leave(), with the client, or with its process.

    Attributes:
        group, name: whose it is, and under which name.
        path: of the node that stands for it.
    """

    def __init__(self, client: Groups, group: str, node: Node) -> None:
        self.group, self.name, self.path = group, node.name, node.path
        self._client = client
        self._listener = client._core.running_listener
        self._leave = calls.delete(node.path, None, node.id)

    def leave(self) -> None:
        """Leave the group. Does nothing if that has happened, also to whoever has joined under the name since."""
        if not _over(self._listener):
            with contextlib.suppress(NoNode, ClosedError):
                self._client._run(self._leave)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.leave()


@mirrors(Membership)
class AsyncMembership:
    def __init__(self, client: AsyncGroups, group: str, node: Node) -> None:
        self.group, self.name, self.path = group, node.name, node.path
        self._client = client
        self._listener = client._core.running_listener
        self._leave = calls.delete(node.path, None, node.id)

    async def leave(self) -> None:
        if not _over(self._listener):
            with contextlib.suppress(NoNode, ClosedError):
                await self._client._run(self._leave)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.leave()


def _over(listener: Listener | None) -> bool:
    """The client is closed, and the node with it; or this is a forked child, and the node its parent's."""
    return listener is None or listener.stopping


class Roll(Observer[list[Member]]):
    """The list of members, again after each change; changes that come fast may be told as one."""

    def __init__(self, listener: Listener, make_signal: MakeSignal, group: str) -> None:
        super().__init__(listener, make_signal, calls.group_path(group), "children", calls.members(group))
        self._told: object = None

    def call(self, left: TimeLeft) -> Flow[list[Member] | None]:
        """The list, if it is not the one that was told last; None when the time is over."""
        while self.seen.state == self._told:
            if (yield from self.event(left)) is None or not (yield from self.observe(left)):
                return None
        self._told = self.seen.state
        return self.seen.value


class MembersWatch:
    """The members of a group, from Client.watch_members(): the list as it is, and again after each change.

    Iterate over it, or ask get() for the next list. Changes that follow fast may come as one; the last state always
    comes. The iteration ends when close() is called or the client is closed.

    Attributes:
        group: its name.
    """

    def __init__(self, client: Shell, group: str, roll: Roll) -> None:
        self.group = group
        self._client = client
        self._roll = roll

    def get(self, timeout: float | None = None) -> list[Member]:
        """The members, at once for the first time, then after the next change, in the order in which they joined.

        Args:
            timeout: seconds to wait for a change; None waits for ever.

        Raises:
            TimeoutError: nothing changed in time.
            ClosedError: the watch or the client is closed.
        """
        timeout = arguments.timeout(timeout)
        return _called(self.group, self._client._drive(self._roll.call(TimeLeft(timeout))), timeout)

    def close(self) -> None:
        """End the watch; a blocked iteration ends. May be called twice."""
        self._roll.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> list[Member]:
        try:
            return self.get()
        except ClosedError:
            raise StopIteration from None


@mirrors(MembersWatch)
class AsyncMembersWatch:
    def __init__(self, client: AsyncShell, group: str, roll: Roll) -> None:
        self.group = group
        self._client = client
        self._roll = roll

    async def get(self, timeout: float | None = None) -> list[Member]:
        timeout = arguments.timeout(timeout)
        return _called(self.group, await self._client._drive(self._roll.call(TimeLeft(timeout))), timeout)

    async def close(self) -> None:
        self._roll.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> list[Member]:
        try:
            return await self.get()
        except ClosedError:
            raise StopAsyncIteration from None


def _called(group: str, members: list[Member] | None, timeout: float | None) -> list[Member]:
    if members is None:
        raise TimeoutError(f"the members of {group!r} did not change within {timeout} s")
    return members


class Groups(Ephemeral):
    def join(self, group: str, data: Any = None, name: str | None = None) -> Membership:
        """Become a member of a group: an ephemeral node below `/groups/<group>`, as ZooKeeper's recipe has it.

        Args:
            group: its name, one part of a path. It is made as needed.
            data: any JSON that others should know of this member.
            name: the member's, if it should have one of its own; default `member-` and a number.

        Raises:
            NodeExists: there is a member of this name.
            ValueError: a name, or the data, cannot be.
            ConnectionLost: whether it has joined is unknown; if so, it leaves when this client closes.
        """
        make = calls.join(group, data, self._encode(data), name)
        return Membership(self, group, self._run_for_session(make, None))

    def members(self, group: str) -> list[Member]:
        """The members of a group, in the order in which they joined. None of them: an empty list."""
        return self._run(calls.members(group)).value

    def watch_members(self, group: str) -> MembersWatch:
        """The members of a group, and again after each change. Use it in a `with`, or close() it.

        Raises:
            ValueError: the group's name cannot be.
            ServerError: the server cannot be reached.
        """
        roll = Roll(self._listener(), threading.Event, group)
        return MembersWatch(self, group, self._drive(roll.begin(self._core.settings.connect_timeout)))


@mirrors(Groups)
class AsyncGroups(AsyncEphemeral):
    async def join(self, group: str, data: Any = None, name: str | None = None) -> AsyncMembership:
        make = calls.join(group, data, self._encode(data), name)
        return AsyncMembership(self, group, await self._run_for_session(make, None))

    async def members(self, group: str) -> list[Member]:
        return (await self._run(calls.members(group))).value

    async def watch_members(self, group: str) -> AsyncMembersWatch:
        roll = Roll(await self._listener(), LoopSignal, group)
        return AsyncMembersWatch(self, group, await self._drive(roll.begin(self._core.settings.connect_timeout)))
