"""How the queues of a crew share its runners: no queue holds all of them, so none holds up the others.

A runner holds a queue from the start of one of its tasks until it starts a task of another queue, or rests. The last
runner that holds none is kept for the queues that no runner holds. So while the tasks of one queue hang, a task of any
other one has a runner. Once a runner holds each of the queues, none has to be kept. A queue that was given a share
holds as many runners as that, and leaves none to others by itself. Of fewer than KEEPING runners none is kept: one
would be a third of them, or half.

Two simpler ways do not work. Runners of its own for each queue multiply the handlers that run at once by the number of
queues. If a queue were only left out of a take once it holds too many runners, the tasks taken before would stay in the
buffer: if they begin to hang, they occupy all runners.

Only a runner that changes its queue asks. One that stays with its own queue costs nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from .._calls.take import Taken
from .._values import arguments

KEEPING = 4  # runners


class Shares:
    """Which queue each of `n` runners holds. Its buffer calls it in the buffer's lock.

    Args:
        given: the most runners that a queue may hold, for the queues that have such a share.
    """

    def __init__(self, n: int, queues: Sequence[str], given: Mapping[str, int]) -> None:
        self._keeps = n >= KEEPING
        self._n = n
        self._given = {queue: given[queue] for queue in queues if queue in given}
        self._held = dict.fromkeys(queues, 0)  # runners, by queue
        self._without = len(self._held)  # queues that no runner holds
        self._holds: dict[object, str] = {}  # a queue, by runner

    @property
    def several(self) -> bool:
        """Whether there are several queues."""
        return len(self._held) > 1

    def may_start(self, queue: str) -> bool:
        """Whether a runner that holds none may start a task of this queue."""
        if (held := self._held.get(queue)) is None:  # the crew has parted with it
            return False
        if (share := self._given.get(queue)) is not None:
            return held < share
        return not (held and self._without and self._keeps) or len(self._holds) + 1 < self._n

    def hold(self, runner: object, queue: str) -> bool:
        """Returns whether runners may start tasks now that they could not start before."""
        self._holds[runner] = queue
        self._held[queue] += 1
        if self._held[queue] > 1:
            return False
        self._without -= 1
        return not self._without

    def leave(self, runner: object) -> bool:
        """The runner holds no queue any more. Returns the same."""
        if (queue := self._holds.pop(runner, None)) is None:
            return False
        self._held[queue] -= 1
        if not self._held[queue]:
            self._without += 1
        return self._held[queue] + 1 == self._given.get(queue)

    def clear(self) -> None:
        """All runners were replaced."""
        for runner in list(self._holds):
            self.leave(runner)

    def part(self, queue: str) -> None:
        """The crew no longer serves this queue. No runner may hold it."""
        self._without -= self._held.pop(queue, None) is not None

    def startable(self) -> frozenset[str]:
        """The queues of which a runner that holds none may start a task."""
        return frozenset(filter(self.may_start, self._held))

    def room(self, queues: Sequence[str], idle: int, held: Collection[Taken]) -> dict[str, int]:
        """How many more tasks of each of these queues `idle` runners may start, without those that may start none.
        `held`: the tasks in the buffer, which count in the shares that were given."""
        rooms = {}
        for queue in queues:
            if queue not in self._held:  # the fetcher does not know yet that the crew has parted with it
                room = 0
            elif (share := self._given.get(queue)) is not None:
                room = min(idle, share - self._held[queue] - sum(task.queue == queue for task in held))
            elif not self._keeps or self._without == (not self._held[queue]):  # no other queue is without
                room = idle
            else:
                room = max(idle - 1, 0 if self._held[queue] else 1)
            if room > 0:
                rooms[queue] = room
        return rooms


def read(text: str) -> tuple[str, int]:
    """A share on a command line, as reports=2. Raises ValueError."""
    queue, equals, share = text.rpartition("=")
    if not equals or not share.isascii() or not share.isdigit():
        raise ValueError(f"a share is QUEUE=N, as reports=2, not {text!r}")
    return arguments.queue_name(queue), int(share)


def shares(given: Mapping[str, int] | None, concurrency: int, queues: Collection[str]) -> dict[str, int]:
    """The argument `shares` of a worker. Raises ValueError."""
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise ValueError(f"shares are numbers by the names of queues, as {{'reports': 2}}, not {given!r}")
    for queue, share in given.items():
        if queue not in queues:
            raise ValueError(f"there is no share for queue {queue!r}: the worker serves {', '.join(queues)}")
        if arguments.count(f"the share of queue {queue!r}", share) > concurrency:
            raise ValueError(f"the share of queue {queue!r} is {share}, more than the concurrency of {concurrency}")
    return dict(given)
