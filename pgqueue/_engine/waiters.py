"""The state of the hub: the waiters of each queue, the state of its channel, and the steps to take for it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from .._calls.wake import Entry
from .places import Place
from .steps import Signal

DRAIN_PAUSE = (0.002, 0.25)  # first and longest, seconds


class Waiter:
    """One sleep of one taker. `since`: the monotonic time at which the taker began to wait, maybe in an earlier sleep.

    inf: it is behind all others, and in no line. `called_for`: the queue whose call woke it. `names`: of the queues
    from which it takes.
    """

    __slots__ = ("armed", "called_for", "names", "queues", "since", "woken")

    def __init__(
        self,
        queues: tuple[int, ...],
        make_signal: Callable[[], Signal],
        since: float = float("inf"),
        names: tuple[str, ...] = (),
    ) -> None:
        self.queues = queues
        self.names = names
        self.since = since
        self.called_for: int | None = None
        self.armed = make_signal()
        self.woken = make_signal()


@dataclass(slots=True)
class Channel:
    waiters: deque[Waiter] = field(default_factory=deque)
    listening: bool = False
    armed: bool = False
    drained: bool = False
    due: float = float("inf")  # monotonic time at which to wake a waiter
    drain_at: float = 0.0
    pause: float = DRAIN_PAUSE[0]
    idle_since: float = 0.0
    place: Place = field(default_factory=Place)

    def add(self, waiter: Waiter) -> None:
        """In the order of `since`: a taker that looked in vain gets its old place."""
        at = len(self.waiters)
        while at and self.waiters[at - 1].since > waiter.since:
            at -= 1
        self.waiters.insert(at, waiter)


@dataclass(slots=True)
class Plan:
    """The statements to send now, in this order, and when to ask again."""

    disarm: list[int] = field(default_factory=list)
    in_line: list[int] = field(default_factory=list)  # those of them of which this process does not hear every put
    leave: dict[int, float] = field(default_factory=dict)  # the places in line of queues that are disarmed
    unlisten: list[int] = field(default_factory=list)
    listen: list[int] = field(default_factory=list)
    arm: list[int] = field(default_factory=list)
    arm_again: list[int] = field(default_factory=list)
    pass_on: list[int] = field(default_factory=list)
    enter: list[Entry] = field(default_factory=list)
    again: float = float("inf")
