"""Alerts: a thread that looks at the queues now and then, and tells when one begins to be alarming."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any, Self

from .._calls import health as calls
from .._sync.client import Client
from .reading import Reader, checked, chosen, positive, stats_of
from .rounds import Rounds
from .thresholds import Alert, Thresholds, Watcher
from .webhook import Webhook

__all__ = ["Alert", "Monitor"]

log = logging.getLogger("pgqueue.alerts")


class Monitor:
    """Watches queues from a thread that begins at once. Closed at the end of a `with` block.

    Args:
        client: whose queues; a blocking Client, which stays open.
        queues: a queue's name, or several. None: all that there are.
        callback: called with each Alert, in the monitor's thread. An exception in it is logged.
        webhook: a URL of http or https to which each Alert is posted as JSON: three attempts, with pauses of 1 and 3 s,
            each given up after 5 s of silence. The looks wait for that.
        factors: an alert when a queue's length (its `total`) reaches so many times its moving average, for each of
            them. Over 2.
        age: an alert when the oldest ready task of a queue is there for so many seconds. None: none.
        half_life: of the moving average, in seconds: after it, half of the average is what came since.
        minimum_average: a lower average counts as this one: nothing below min(factors) * minimum_average is alarming.
        health: an alert when a check of the view pgqueue.health turns bad.
        interval: seconds from look to look.
        elect: a name, as for Client.elect: of all processes that watch under it only the elected leader tells; the
            others watch too, to know what is usual when they are elected. Takes a listener connection. None: each
            one tells.

    Each Alert is a warning of the logger `pgqueue.alerts` too. It comes once when its threshold is reached, and again
    only after the value was below 0.8 of it, or the check not bad. What is usual is kept in memory: a monitor takes
    what it finds at its start for usual, so one that is started during an outage knows it by age only. A forked child
    does not watch.

    Raises:
        ValueError: an argument cannot be.
    """

    def __init__(
        self,
        client: Client,
        queues: str | Sequence[str] | None = None,
        *,
        callback: Callable[[Alert], Any] | None = None,
        webhook: str | None = None,
        factors: Sequence[float] = (5.0, 10.0, 20.0),
        age: float | None = None,
        half_life: float = 86400.0,
        minimum_average: float = 10.0,
        health: bool = True,
        interval: float = 10.0,
        elect: str | None = None,
    ) -> None:
        if callback is not None and not callable(callback):
            raise ValueError(f"callback must be a function or None, not {callback!r}")
        names = chosen(queues)
        checked(client)
        self._callback = callback
        self._webhook = None if webhook is None else Webhook(webhook)
        self._watcher = Watcher(
            Thresholds(factors=factors, age=age, half_life=half_life, minimum_average=minimum_average)
        )
        self._reader = Reader(lambda: (stats_of(client, names), client.shell.run(calls.health()) if health else []))
        interval = positive("interval", interval)
        election = None if elect is None else client.elect(elect)
        self._rounds = Rounds("pgqueue-alerts", self._look, interval, election)

    def close(self) -> None:
        """Watch no more, and wait for the end of the thread. May be called twice, and in the callback."""
        self._rounds.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _look(self, rounds: Rounds) -> None:
        found = self._reader.read()
        if found is not None:
            for alert in self._watcher.look(*found, time.time()):
                if rounds.leading:
                    self._tell(alert, rounds)

    def _tell(self, alert: Alert, rounds: Rounds) -> None:
        log.warning("%s", alert.text)
        if self._callback is not None:
            try:
                self._callback(alert)
            except Exception:
                log.exception("the callback of an alert failed")
        if self._webhook is not None:
            self._webhook.post(alert.as_dict(), rounds.pause)
