"""Alerts: a thread that looks at the queues periodically, and reports when one reaches a threshold."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any, Self

from .._calls import health as calls
from .._sync.client import Client
from .._values import arguments
from .._values.arguments import Seconds
from .reading import Reader, checked, chosen, positive, stats_of
from .rounds import Rounds
from .thresholds import Alert, Thresholds, Watcher
from .webhook import Webhook

__all__ = ["Alert", "Monitor"]

log = logging.getLogger("pgqueue.alerts")


class Monitor:
    """Watches queues from a thread that begins at once. Closed at the end of a `with` block.

    Args:
        client: the client to read with; a blocking Client, which stays open.
        queues: a queue's name, or several. None: all queues.
        callback: called with each Alert, in the monitor's thread. An exception in it is logged.
        webhook: a URL of http or https to which each Alert is posted as JSON: three attempts, with pauses of 1 and 3 s,
            each given up after 5 s of silence. The looks wait for that.
        factors: for each factor, an alert when a queue's length (its `total`) reaches this multiple of its moving
            average. Each is over 2.
        age: an alert when the oldest ready task of a queue is this old, in seconds or as a timedelta. None: no such
            alert.
        half_life: the half-life of the moving average, in seconds or as a timedelta: after it, the lengths since then
            make up half of the average.
        minimum_average: a lower average counts as this one, so lengths below min(factors) * minimum_average raise no
            alert.
        health: an alert when a check of the view pgqueue.health turns bad.
        interval: seconds between looks, or a timedelta.
        elect: a name, as for Client.elect: of all processes that watch under this name only the elected leader sends
            alerts. The others watch too, to have an average when they are elected. Needs a listener connection. None:
            each process sends alerts.

    Each Alert is also logged as a warning of the logger `pgqueue.alerts`. It is sent once when its threshold is
    reached, and again only after the value was below 0.8 of the threshold, or the check was not bad. Averages are kept
    in memory and begin with the first look: a monitor that starts during an outage detects it by age only. A forked
    child does not watch.

    Raises:
        ValueError: an argument is not valid.
    """

    def __init__(
        self,
        client: Client,
        queues: str | Sequence[str] | None = None,
        *,
        callback: Callable[[Alert], Any] | None = None,
        webhook: str | None = None,
        factors: Sequence[float] = (5.0, 10.0, 20.0),
        age: Seconds | None = None,
        half_life: Seconds = 86400.0,
        minimum_average: float = 10.0,
        health: bool = True,
        interval: Seconds = 10.0,
        elect: str | None = None,
    ) -> None:
        if callback is not None and not callable(callback):
            raise ValueError(f"callback must be a function or None, not {callback!r}")
        names = chosen(queues)
        checked(client)
        self._callback = callback
        self._webhook = None if webhook is None else Webhook(webhook)
        self._watcher = Watcher(
            Thresholds(
                factors=factors,
                age=arguments.seconds("age", age, positive=True),
                half_life=positive("half_life", half_life),
                minimum_average=minimum_average,
            )
        )
        self._reader = Reader(lambda: (stats_of(client, names), client.shell.run(calls.health()) if health else []))
        interval = positive("interval", interval)
        election = None if elect is None else client.elect(elect)
        self._rounds = Rounds("pgqueue-alerts", self._look, interval, election)

    def close(self) -> None:
        """Stop watching, and wait for the end of the thread. May be called twice, and in the callback."""
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
