"""Groups of processes: the list of members, as ZooKeeper's recipe on ephemeral nodes. Both shells."""

from __future__ import annotations

from .._calls import groups as calls
from .._calls.groups import Member
from .listener import Listener
from .steps import Flow
from .waits import MakeSignal, TimeLeft
from .watches import Observer


def is_over(listener: Listener | None) -> bool:
    """Whether the membership is over: the client is closed, or this is a forked child of the member's process."""
    return listener is None or listener.stopping


class Roll(Observer[list[Member]]):
    """The list of members, again after each change. Changes in quick succession may be reported as one."""

    def __init__(self, listener: Listener, make_signal: MakeSignal, group: str) -> None:
        super().__init__(listener, make_signal, calls.group_path(group), "children", calls.members(group))
        self._told: object = None

    def call(self, left: TimeLeft) -> Flow[list[Member] | None]:
        """The next list that differs from the last one returned; None when the time is over."""
        while self.seen.state == self._told:
            if (yield from self.event(left)) is None or not (yield from self.observe(left)):
                return None
        self._told = self.seen.state
        return self.seen.value


def called(group: str, members: list[Member] | None, timeout: float | None) -> list[Member]:
    if members is None:
        raise TimeoutError(f"the members of {group!r} did not change within {timeout} s")
    return members
