# Generated from pgqueue/_async/groups.py by tools/blocking.py: edit that file, not this one.

"""Groups of processes: a recipe on ephemeral nodes."""

from __future__ import annotations

import contextlib
from typing import Any, Self

from .._calls import groups as calls
from .._calls import nodes as nodes_calls
from .._calls.groups import Member
from .._calls.nodes import Node
from .._engine.blocking import Signal
from .._engine.groups import Roll, called, is_over
from .._engine.waits import TimeLeft
from .._values import arguments
from .._values.arguments import Seconds
from ..errors import ClosedError, NoNode
from .shell import Shell


class Membership:
    """This client's place in a group, from client.groups.join(). It ends by leave(), with the client or its process.

    Attributes:
        group, name: the group's, and the member's.
        path: the path of its node.
    """

    def __init__(self, shell: Shell, group: str, node: Node) -> None:
        self.group, self.name, self.path = group, node.name, node.path
        self._shell = shell
        self._listener = shell.core.running_listener
        self._leave = nodes_calls.delete(node.path, None, node.id)

    def leave(self) -> None:
        """Leave the group. Does nothing the second time, even if another member has the name by then."""
        if not is_over(self._listener):
            with contextlib.suppress(NoNode, ClosedError):
                self._shell.run(self._leave)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.leave()


class MembersWatch:
    """The members of a group, from client.groups.watch(): the list as it is, and again after each change.

    Iterate over it, or ask get() for the next list. Changes in quick succession may be reported as one; the last state
    is always reported. The iteration ends when close() is called or the client is closed.

    Attributes:
        group: its name.
    """

    def __init__(self, shell: Shell, group: str, roll: Roll) -> None:
        self.group = group
        self._shell = shell
        self._roll = roll

    def get(self, timeout: Seconds | None = None) -> list[Member]:
        """The members, at once for the first time, then after the next change, in the order in which they joined.

        Args:
            timeout: seconds to wait for a change, or a timedelta; None waits without limit, 0 does not wait.

        Raises:
            TimeoutError: nothing changed in time.
            ClosedError: the watch or the client is closed.
        """
        seconds = arguments.timeout(timeout)
        return called(self.group, self._shell.drive(self._roll.call(TimeLeft(seconds))), seconds)

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


class Groups:
    """Groups of processes, as `client.groups`: the members that are alive, each with its data."""

    def __init__(self, shell: Shell) -> None:
        self._shell = shell

    def join(self, group: str, data: Any = None, name: str | None = None) -> Membership:
        """Become a member of a group: an ephemeral node below `/groups/<group>`, as ZooKeeper's recipe has it.

        Args:
            group: its name, one part of a path. It is created if it does not exist.
            data: any JSON, for the other members to read.
            name: the member's name; default `member-` and a number.

        Raises:
            NodeExists: there is a member of this name.
            ValueError: a name, or the data, is not valid.
            ConnectionLost: whether it has joined is unknown; if so, it leaves when this client closes.
        """
        make = calls.join(group, data, self._shell.encode(data), name)
        return Membership(self._shell, group, self._shell.for_session(make, None))

    def members(self, group: str) -> list[Member]:
        """The members of a group, in the order in which they joined. An empty list for a group without members."""
        return (self._shell.run(calls.members(group))).value

    def watch(self, group: str) -> MembersWatch:
        """The members of a group, and again after each change. Use it in a `with`, or close() it.

        Raises:
            ValueError: the group's name is not valid.
            ServerError: the server cannot be reached.
        """
        roll = Roll(self._shell.listener(), Signal, group)
        self._shell.drive(roll.begin(self._shell.settings.patience))
        return MembersWatch(self._shell, group, roll)
