"""Alerts: a thread that looks at the queues periodically, and reports when one reaches a threshold."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

from .._calls import health as calls
from .._calls.health import Check, Conditions
from .._calls.stats import Stats
from .._sync.client import Client
from .._values.arguments import Seconds
from .._values.logs import Log
from .alertmanager import Alertmanager, checked_labels
from .mail import Mail
from .reading import Reader, checked, chosen, positive, stats_of
from .rounds import Rounds
from .targets import Senders, Target
from .thresholds import AGE, FAILURES, LATE, LENGTH, SNAPSHOT, UNTAKEN, Alert, EachNumber, EachSeconds, Thresholds
from .watcher import Watcher
from .webhook import Slack, Webhook

__all__ = ["Alert", "Monitor"]

log = Log(logging.getLogger("pgqueue.alerts"))


class Monitor:
    """Watches queues from a thread that begins at once. Closed at the end of a `with` block.

    Each of the thresholds `length`, `age`, `failures`, `untaken` and `late_schedule` is one for all queues, or a
    mapping from the names of queues to theirs, in which None stands for the other queues, for example
    `length={"mail": 1000, None: 50_000}`. Without None these have the default. A threshold that is None is off, for
    example `age={"reports": None}`. Durations are numbers of seconds or timedeltas.

    Args:
        client: the client to read with; a blocking Client, which stays open.
        queues: a queue's name, or several. None: all queues.
        callback: called with each Alert, in the monitor's thread. An exception in it is logged.
        webhook: a URL of http or https to which each Alert is posted as JSON.
        slack: the URL of an incoming webhook of Slack, which gets the texts.
        alertmanager: the URL of an Alertmanager of Prometheus, or those of all members of a cluster.
        labels: are added to the labels that Alertmanager gets, for example {"env": "production"}.
        mail: an e-mail address, or several.
        smtp: the mail server: smtp://user:password@host:587, or smtps://host for TLS from the start.
        mail_from: the sender's address. None: the user of `smtp` if that is an address, else pgqueue at this machine.
        length: ready tasks of a queue.
        age: of the oldest ready task of a queue.
        failures: failed attempts in a queue in the last minute: runs that failed, as workers count them; or tasks that
            were buried, or whose time to run was over, if these are more.
        untaken: for how long a queue has had ready tasks while nothing took one, and no taker had one. A paused queue
            has no such time.
        late_schedule: for how long an occurrence of a schedule of the queue has waited to be fired.
        snapshot: the age of the oldest snapshot that keeps dead rows of this database from being removed.
        factors: for each factor, an alert when a queue's length (its `total`) reaches this multiple of its moving
            average. Each is over 2.
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
    reached, and once, as resolved, when the value is below 0.8 of the threshold, or the check is not bad. Each target
    has a thread of its own, which makes three attempts, with pauses of 1 and 3 s, each given up after 5 s of silence. A
    target that fails is logged once, and when it works again. Averages are kept in memory and begin with the first
    look. A forked child does not watch.

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
        slack: str | None = None,
        alertmanager: str | Sequence[str] | None = None,
        labels: Mapping[str, str] | None = None,
        mail: str | Sequence[str] | None = None,
        smtp: str = "smtp://localhost",
        mail_from: str | None = None,
        length: EachNumber = LENGTH,
        age: EachSeconds = AGE,
        failures: EachNumber = FAILURES,
        untaken: EachSeconds = UNTAKEN,
        late_schedule: EachSeconds = LATE,
        snapshot: Seconds | None = SNAPSHOT,
        factors: Sequence[float] = (5.0, 10.0, 20.0),
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
        self._watcher = Watcher(
            Thresholds(
                length=length,
                age=age,
                failures=failures,
                untaken=untaken,
                late_schedule=late_schedule,
                snapshot=snapshot,
                factors=factors,
                half_life=positive("half_life", half_life),
                minimum_average=minimum_average,
            )
        )
        seconds = positive("interval", interval)
        more = checked_labels({} if labels is None else labels)
        targets: list[Target] = [Webhook(webhook)] if webhook is not None else []
        targets += [Slack(slack)] if slack is not None else []
        managers = [alertmanager] if isinstance(alertmanager, str) else alertmanager or ()
        targets += [Alertmanager(url, seconds, more) for url in managers]
        targets += [Mail(mail, smtp, mail_from)] if mail else []

        def look() -> tuple[dict[str, Stats], list[Check], Conditions]:
            checks = client.shell.run(calls.health()) if health else []
            return stats_of(client, names), checks, client.shell.run(calls.conditions(names))

        self._reader = Reader(look)
        election = None if elect is None else client.elect(elect)
        self._senders = Senders(targets)
        self._rounds = Rounds("pgqueue-alerts", self._look, seconds, election)

    def close(self) -> None:
        """Stop watching, and wait for the end of the thread, and up to 6 s for alerts that are being sent.

        May be called twice, and in the callback.
        """
        self._rounds.close()
        self._senders.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _look(self, rounds: Rounds) -> None:
        found = self._reader.read()
        alerts = [] if found is None else self._watcher.look(*found, time.time())
        if rounds.leading:  # also if the database is away: an alert fires until the opposite is known
            for alert in alerts:
                self._tell(alert)
            self._senders.tell(alerts, self._watcher.firing.values())

    def _tell(self, alert: Alert) -> None:
        log.warning("%s", alert.text)
        if self._callback is not None:
            try:
                self._callback(alert)
            except Exception:
                log.exception("the callback of an alert failed")
