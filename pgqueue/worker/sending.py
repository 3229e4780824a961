"""Sends batches of settled tasks, and keeps apart the tasks that cannot be settled now, so that the others go on.

A batch is one statement: all of it or nothing. If the server refuses a batch, it is divided: by queue first, so that
the tasks of one queue do not wait for those of another, then into halves, until a single task is refused. Such a task
is kept apart, and tried again with pauses. For example, a transaction that stays open has locked it, or the rights to
its queue were revoked. A statement waits for a lock for 100 ms at most (`hasty` in _calls/call.py).

An error that means that the server is away, or silent, is no refusal: then the sender waits for the server.

While the worker works, nothing is given up: the server may be restarting, or an administrator may be restoring rights.
Once the worker stops, the sender gives up tasks that it cannot send after LAST seconds, or when the worker's grace is
over, and they are delivered again.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from .._calls.call import Call, Refused
from .._engine.outages import AWAY, TELL, Pauses
from .._values.logs import log
from ..errors import ClosedError

if TYPE_CHECKING:
    from .._sync.shell import Shell

T = TypeVar("T")

LAST = 10.0  # seconds to go on trying once the worker stops
SLICE = 0.02  # seconds for tasks that were refused before, between two looks for others


@dataclass(frozen=True, slots=True)
class Verb(Generic[T]):
    """A way to settle tasks.

    Attributes:
        call: makes the call for items of a batch.
        queue: the queue of an item.
        refused: gets a task that the call could not settle, since its take is over.
        unsendable: gets an item that the server refused alone, and the error. Returns whether the item is dealt with,
            and need not be tried again.
        relaxed: the commit need not be durable.
    """

    call: Callable[[list[T]], Call[list[Refused]]]
    queue: Callable[[T], str]
    refused: Callable[[Refused], None] = lambda task: None
    unsendable: Callable[[T, Exception], bool] = lambda item, error: False
    relaxed: bool = False


@dataclass(slots=True)
class Batch(Generic[T]):
    """Items to send by one call. `at`: the monotonic time of the next attempt."""

    verb: Verb[T]
    items: list[T]
    began: float = field(default_factory=time.monotonic)
    at: float = 0.0
    pauses: Pauses = field(default_factory=Pauses)

    def divided(self) -> list[Batch[T]]:
        """The same items in smaller batches, the smallest first."""
        queues: dict[str, list[T]] = {}
        for item in self.items:
            queues.setdefault(self.verb.queue(item), []).append(item)
        half = len(self.items) // 2
        parts = sorted(queues.values(), key=len) if len(queues) > 1 else [self.items[:half], self.items[half:]]
        return [Batch(self.verb, part, self.began) for part in parts]


class Sender:
    """Used by one thread, but for stop() and `held`.

    Attributes:
        held: the number of tasks that were refused and are tried again, by queue.
        given_up: whether tasks were given up.
    """

    def __init__(self, shell: Shell) -> None:
        self.held: Counter[str] = Counter()
        self.given_up = False
        self._shell = shell
        self._apart: deque[Batch[Any]] = deque()
        self._tell_at = 0.0
        self._stopping = threading.Event()
        self._until = float("inf")

    def stop(self, until: float) -> None:
        self._until = until
        self._stopping.set()

    def send(self, verb: Verb[T], items: list[T]) -> None:
        """Settle tasks. Does not raise. If they are refused, they are sent again by send_again()."""
        self._try(Batch(verb, items))

    def due_in(self) -> float | None:
        """In how many seconds send_again() has something to do; None: nothing was refused."""
        return max(0.0, min(one.at for one in self._apart) - time.monotonic()) if self._apart else None

    def send_again(self) -> None:
        """Send the refused tasks that are due, for SLICE seconds and one call."""
        until = time.monotonic() + SLICE
        for _ in range(len(self._apart)):
            batch = self._apart.popleft()
            if batch.at > time.monotonic():
                self._apart.append(batch)
                continue
            self.held.subtract(map(batch.verb.queue, batch.items))
            self._try(batch)
            if time.monotonic() >= until:
                break
        self.held = +self.held

    def _try(self, batch: Batch[Any]) -> None:
        try:
            refused = self._until_sent(batch)
        except Exception as error:
            self._put_apart(batch, error)
        else:
            for task in refused:
                batch.verb.refused(task)

    def _put_apart(self, batch: Batch[Any], error: Exception) -> None:
        alone = len(batch.items) == 1
        if alone and batch.verb.unsendable(batch.items[0], error):
            return
        if self._is_over(batch) or isinstance(error, ClosedError):
            self._give_up(error)
            return
        if alone:
            self._tell(error)
            batch.at = time.monotonic() + batch.pauses.failed()
            self._apart.append(batch)
        else:
            self._apart.extendleft(reversed(batch.divided()))
        self.held.update(map(batch.verb.queue, batch.items))

    def _until_sent(self, batch: Batch[Any]) -> list[Refused]:
        """Send until the server has answered. Raises the server's refusal."""
        pauses, call = Pauses(), batch.verb.call(batch.items)
        while True:
            try:
                return self._shell.run(call, relaxed=batch.verb.relaxed)
            except AWAY as error:
                if self._is_over(batch):
                    self._give_up(error)
                    return []
                self._shell.core.outage.met(error)
                time.sleep(pauses.failed())

    def _is_over(self, batch: Batch[Any]) -> bool:
        now = time.monotonic()
        return self._stopping.is_set() and (now - batch.began >= LAST or now >= self._until)

    def _give_up(self, error: Exception) -> None:
        self.given_up = True
        log.error("tasks could not be settled and will be delivered again: %s", error)

    def _tell(self, error: Exception) -> None:
        if (now := time.monotonic()) >= self._tell_at:
            self._tell_at = now + TELL
            log.warning("settling tasks is tried again: %s", error)
