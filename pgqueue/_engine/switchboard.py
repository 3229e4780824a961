"""The waiters on named channels, and the channels that the listener has to LISTEN to. No I/O and no thread.

Theory of operation
-------------------
An ear is one waiter's end of a channel. It hears every payload that is committed after the ear became active: LISTEN
is known to be committed by then. All ears of a channel hear the same payloads. Each ear has a buffer of its own, since
a shared counter miscounts as soon as one of its waiters gives up.

    absent --enter--> wanted --LISTEN--> listening ... the last ear left ... --UNLISTEN after an idle time--> absent

- Waiters only enter and leave. The listener thread sends LISTEN and UNLISTEN, as plan() returns them.
- A channel without ears stays for an idle time, for the next waiter. Of more than KEPT the oldest go sooner, with the
  next LISTEN. Each result that is awaited has a channel of its own, and the server walks over all channels of a
  connection: with 10,000 of them a notification took 30 us more, and a LISTEN with its UNLISTEN 60.
- plan() removes a channel here before the listener sends its UNLISTEN. A waiter that enters before the UNLISTEN is sent
  then asks for a new LISTEN, behind the UNLISTEN, and does not rely on the old one.
- A lost connection may have lost payloads. Every ear that was active gets a gap once LISTEN is committed again. If an
  ear got the gap at the loss, its waiter would look at the state and sleep again before the listener listens.
- A full buffer drops its oldest payload, which is a gap too. The listener never waits for a slow reader. A gap behind
  an equal gap is left out.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from .steps import Signal

KEPT = 100  # channels without ears


@dataclass(frozen=True, slots=True)
class Gap:
    """Marks a place in a buffer where payloads may be missing."""

    reason: str


RECONNECT = Gap("the connection was lost")
OVERFLOW = Gap("the buffer was full")
TOO_LATE = Gap("a large payload was fetched too late")


class Ear:
    """One waiter's end of a channel. `ready` is set once the ear is active, and also when the listener ends.

    With `tell` the ear has no buffer: the listener's thread calls `tell` with each payload and gap. It must not raise.
    """

    __slots__ = ("channel", "hung_up", "limit", "payloads", "ready", "signal", "tell")

    def __init__(
        self,
        channel: str,
        make_signal: Callable[[], Signal],
        limit: int = 1000,
        tell: Callable[[str | Gap], None] | None = None,
    ) -> None:
        self.channel = channel
        self.limit = limit
        self.tell = tell
        self.hung_up = False
        self.ready = make_signal()
        self.signal: Signal | None = None  # set at the next payload or gap
        self.payloads: deque[str | Gap] = deque()


@dataclass(slots=True)
class Line:
    ears: list[Ear] = field(default_factory=list)
    listening: bool = False


class Switchboard:
    """The named channels of one listener. Every method is safe from any thread."""

    def __init__(self, idle_timeout: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._idle_timeout = idle_timeout
        self._clock = clock
        self._lock = threading.Lock()
        self._lines: dict[str, Line] = {}
        self._wanted: dict[str, None] = {}  # lines with ears that are not listened to
        self._idle: dict[str, float] = {}  # lines without ears, since when; the first one for the longest time
        self._untold: deque[tuple[Callable[[str | Gap], None], str | Gap]] = deque()
        self.closed = False

    # --- waiters

    def enter(self, ear: Ear) -> bool:
        """Begin to hear. Returns True if the caller has to poke the listener."""
        with self._lock:
            line = self._lines.setdefault(ear.channel, Line())
            line.ears.append(ear)
            self._idle.pop(ear.channel, None)
            if line.listening or self.closed:
                ear.ready.set()
                return False
            self._wanted[ear.channel] = None
            return True

    def leave(self, ear: Ear) -> None:
        """Stop hearing. The listener need not be poked: its UNLISTEN is not urgent."""
        with self._lock:
            line = self._lines.get(ear.channel)
            if line and ear in line.ears:
                line.ears.remove(ear)
                if not line.ears:
                    self._wanted.pop(ear.channel, None)
                    self._idle[ear.channel] = self._clock()

    def hang_up(self, ear: Ear) -> None:
        """Leave, and wake the waiter for the next payload."""
        self.leave(ear)
        with self._lock:
            ear.hung_up = True
            self._rouse(ear)

    def hear(self, ear: Ear) -> str | Gap | None:
        """The next payload or gap, None if there is none yet."""
        with self._lock:
            return ear.payloads.popleft() if ear.payloads else None

    def forget(self, ear: Ear) -> None:
        """Drop the payloads and gaps that arrived until now."""
        with self._lock:
            ear.payloads.clear()

    def await_next(self, ear: Ear, signal: Signal) -> None:
        """Set `signal` when there is something to hear, a gap, or the end."""
        with self._lock:
            ear.signal = signal
            if ear.payloads or ear.hung_up or self.closed:
                signal.set()

    # --- the listener

    def plan(self) -> tuple[list[str], list[str], float]:
        """The channels to UNLISTEN and those to LISTEN to now, and when to ask again."""
        with self._lock:
            on = list(self._wanted)
            off, again = self._given_up(KEPT if on else len(self._idle))
            return off, on, again

    def listening(self, names: Iterable[str]) -> None:
        """LISTEN is committed. Ears that were active before a loss get their gap now: a look any sooner is too soon."""
        with self._lock:
            for name in names:
                line = self._lines[name]
                line.listening = True
                self._wanted.pop(name, None)
                for ear in line.ears:
                    if ear.ready.is_set():
                        self._append(ear, RECONNECT)
                        self._rouse(ear)
                    else:
                        ear.ready.set()
        self._tell()

    def is_heard(self, name: str) -> bool:
        """Whether an ear is on the channel: the server also sends payloads that are posted before its UNLISTEN."""
        line = self._lines.get(name)
        return line is not None and bool(line.ears)

    def deliver(self, name: str, heard: str | Gap) -> None:
        """Give a payload, or a gap, to every ear of the channel."""
        with self._lock:
            line = self._lines.get(name)
            for ear in line.ears if line else ():
                self._append(ear, heard)
                self._rouse(ear)
        self._tell()

    def disconnected(self) -> None:
        """Every LISTEN is gone."""
        with self._lock:
            for line in self._lines.values():
                line.listening = False
            self._wanted.update((name, None) for name, line in self._lines.items() if line.ears)

    def close(self) -> None:
        """End all waits: no ear hears anything any more."""
        with self._lock:
            self.closed = True
            for line in self._lines.values():
                for ear in line.ears:
                    ear.ready.set()
                    self._rouse(ear)

    def after_fork(self) -> None:
        """In a forked child: there is no listener. The lock may have been held at the fork."""
        self._lock = threading.Lock()
        self.closed = True

    def _tell(self) -> None:
        """Call the ears' `tell` outside the lock: it may enter or leave."""
        while self._untold:
            tell, item = self._untold.popleft()
            tell(item)

    # --- inside the lock (hub.py says which loops are here)

    def _given_up(self, kept: int) -> tuple[list[str], float]:
        """Forget the channels without a waiter that are idle for too long, or too many. Returns those to UNLISTEN, and
        when the next one is due."""
        off, now = list[str](), self._clock()
        while self._idle:
            name, since = next(iter(self._idle.items()))
            if len(self._idle) <= kept and now < since + self._idle_timeout:
                return off, since + self._idle_timeout
            del self._idle[name]
            if self._lines.pop(name).listening:
                off.append(name)
        return off, float("inf")

    def _append(self, ear: Ear, item: str | Gap) -> None:
        if ear.tell is not None:
            self._untold.append((ear.tell, item))
            return
        if isinstance(item, Gap) and ear.payloads and ear.payloads[-1] is item:
            return
        known = bool(ear.payloads) and isinstance(ear.payloads[0], Gap)  # whether older payloads were dropped
        if len(ear.payloads) - known >= ear.limit:
            for _ in range(1 + known):
                ear.payloads.popleft()
            ear.payloads.appendleft(OVERFLOW)
        ear.payloads.append(item)

    @staticmethod
    def _rouse(ear: Ear) -> None:
        if ear.signal is not None:
            ear.signal.set()
            ear.signal = None
