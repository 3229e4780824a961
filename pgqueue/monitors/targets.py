"""The targets of alerts: each has a thread of its own, so that one that hangs does not hold up the others.

One thread that tries the targets in turn would be simpler, but a server that is silent for 5 s, three times, would hold
up the looks and every other target.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Collection, Sequence

from .._engine import forks
from .._engine.owners import Owned
from .reading import Outage
from .thresholds import Alert

PAUSES = (1.0, 3.0)  # seconds, between the attempts
PENDING = 1000  # alerts that wait for a target
CLOSING = 6.0  # seconds that a monitor that is closed waits for its targets: over the timeout of an attempt


class Target(ABC):
    """Something that gets alerts.

    Attributes:
        name: for the log, without secrets.
        most: how many alerts a call of send() gets.
        again: after how many seconds alerts that fire are sent again. None: never.
    """

    name: str
    most: int = 1
    again: float | None = None

    @abstractmethod
    def send(self, alerts: Sequence[Alert]) -> None:
        """Send these, at once or none. Raises OSError."""


class Sender:
    """The thread of a target. It begins when made, and ends with close(); a forked child has none.

    Three attempts; while a target fails, one for each of its sends. A failure is logged once, and when it is over.
    """

    def __init__(self, target: Target) -> None:
        self._target = target
        self._waiting: deque[Alert] = deque(maxlen=PENDING)  # full: the oldest is dropped; all of them are in the log
        self._outage = Outage(f"alerts do not reach {target.name}")
        self._failing = False
        self._again_at = 0.0
        self._come = threading.Event()
        self._stopped = threading.Event()
        self._thread = Owned("pgqueue-alerts-target", self._run, self._stopped.is_set)
        forks.register(self)
        self._thread.start()

    def tell(self, news: Sequence[Alert], firing: Collection[Alert]) -> None:
        """Send new alerts, and those that fire if they are due again. Does not wait."""
        again = self._target.again
        if again is not None and time.monotonic() >= self._again_at and not self._waiting:
            self._again_at = time.monotonic() + again
            news = [*firing, *(alert for alert in news if alert.state == "resolved")]
        self._waiting.extend(news)
        if news:
            self._come.set()

    def stop(self) -> None:
        """Make no more pauses, and end once all waiting alerts were tried."""
        self._stopped.set()
        self._come.set()

    def join(self, until: float) -> None:
        if self._thread is not threading.current_thread():
            self._thread.join(max(0.0, until - time.monotonic()))

    def after_fork(self) -> None:
        self._come, self._stopped = threading.Event(), threading.Event()
        self._stopped.set()

    def _run(self) -> None:
        while True:
            self._come.wait()
            self._come.clear()
            while self._waiting:
                self._send([self._waiting.popleft() for _ in range(min(len(self._waiting), self._target.most))])
            if self._stopped.is_set():
                return

    def _send(self, alerts: Sequence[Alert]) -> None:
        for seconds in (*PAUSES, None):
            try:
                self._target.send(alerts)
            except Exception as error:
                self._outage.failed(error)
                if self._failing or seconds is None or self._stopped.wait(seconds):
                    self._failing = True
                    return
            else:
                self._outage.worked()
                self._failing = False
                return


class Senders:
    """Those of all targets of a monitor."""

    def __init__(self, targets: Sequence[Target]) -> None:
        self._senders = [Sender(target) for target in targets]

    def tell(self, news: Sequence[Alert], firing: Collection[Alert]) -> None:
        for sender in self._senders:
            sender.tell(news, firing)

    def close(self) -> None:
        """Waiting alerts are tried once more. A target that hangs is left to its thread."""
        until = time.monotonic() + CLOSING
        for sender in self._senders:
            sender.stop()
        for sender in self._senders:
            sender.join(until)
