"""The state that the connections of a server share, and the counters of its statistics."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from time import monotonic

MOST = 10_000  # tubes that were left and not looked at yet; of more, the queues stay


@dataclass(eq=False, slots=True)
class Peer:
    """One connection, as statistics see it.

    Attributes:
        used: the tube into which it puts.
        watched: the tubes from which it reserves.
        waiting: whether a reserve waits for a job.
        producer: whether it has put.
        worker: whether it has reserved.
    """

    used: str = "default"
    watched: list[str] = field(default_factory=lambda: ["default"])
    waiting: bool = False
    producer: bool = False
    worker: bool = False


@dataclass(slots=True)
class Pause:
    """The pauses of a tube by this server: how many, and the length of the last one in seconds."""

    times: int
    seconds: int


@dataclass(eq=False, slots=True)
class Figures:
    """The server's settings and counters.

    Attributes:
        max_job_size: bytes of a body.
        draining: whether puts are refused.
        peers: the connections that are open.
        accepted: how many there were in all.
        commands: how often each command was given.
        pauses: by tube.
        left: the tubes that connections have left, for Leftovers.
        id: random, another one for each server.
        began: monotonic time.
    """

    max_job_size: int
    draining: bool = False
    peers: set[Peer] = field(default_factory=set)
    accepted: int = 0
    commands: Counter[str] = field(default_factory=Counter)
    pauses: dict[str, Pause] = field(default_factory=dict)
    left: set[str] = field(default_factory=set)
    id: str = field(default_factory=lambda: secrets.token_hex(8))
    began: float = field(default_factory=monotonic)

    def count(self, test: Callable[[Peer], bool]) -> int:
        """How many connections pass the test."""
        return sum(map(test, self.peers))

    def referred(self) -> set[str]:
        """The tubes that exist though they may be empty: the first one, and those that a connection uses or watches."""
        return {"default"}.union(*([peer.used, *peer.watched] for peer in self.peers))

    def leave(self, *tubes: str) -> None:
        """Note that a connection does not refer to tubes any more."""
        if len(self.left) < MOST:
            self.left.update(tubes)

    def paused(self, tube: str, seconds: int) -> None:
        before = self.pauses.get(tube)
        self.pauses[tube] = Pause(before.times + 1 if before else 1, seconds)
