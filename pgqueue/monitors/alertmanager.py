"""Alerts to Prometheus's Alertmanager, by its API v2: it groups, silences and passes them on.

An alert ends there by itself at its `endsAt`, and lives on if it is sent again before. So a monitor that dies leaves no
alert behind, and an Alertmanager that was away gets them all. An alert that is resolved is sent once, with the time of
that; if this is lost, it ends a little later.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from .targets import Target
from .thresholds import Alert
from .webhook import Post

AGAIN = 60.0  # seconds: as Prometheus does
LIVES = 4  # times that until an alert ends: as Prometheus does
PATH = "/api/v2/alerts"


class Alertmanager(Target):
    """An Alertmanager, by the URL that its web pages have.

    Args:
        interval: seconds between the looks.
        labels: are added to each alert's, for example {"env": "production"}.
    """

    most = 100

    def __init__(self, url: str, interval: float, labels: Mapping[str, str]) -> None:
        self._post = Post(url, "alertmanager", PATH)
        self.name = f"the Alertmanager at {self._post.host}"
        self.again = max(AGAIN, interval)
        self._lives = LIVES * self.again
        self._labels = dict(labels)

    def send(self, alerts: Sequence[Alert]) -> None:
        self._post([self._shown(alert) for alert in alerts])

    def _shown(self, alert: Alert) -> dict[str, Any]:
        """As the API has it. An empty label is the same as none."""
        labels = {
            "alertname": f"pgqueue_{alert.kind}",
            "queue": alert.queue,
            "schedule": alert.name if alert.kind == "late_schedule" else None,
            "check": alert.name if alert.kind == "health" else None,
            "factor": None if alert.factor is None else f"{alert.factor:g}",
        }
        fires = alert.state == "firing"
        return {
            "labels": {name: value for name, value in labels.items() if value} | self._labels,
            "annotations": {"summary": alert.text},
            "startsAt": _time(alert.since),
            "endsAt": _time(max(alert.since, _now() + self._lives if fires else alert.at)),
        }


def checked_labels(labels: object) -> dict[str, str]:
    """Labels of Prometheus. Raises ValueError."""
    if not isinstance(labels, Mapping):
        raise ValueError(f"labels must be a mapping of names to texts, not {labels!r}")
    for name, value in labels.items():
        if not isinstance(name, str) or not re.fullmatch(r"[a-zA-Z_][a-zA-Z0-9_]*", name):
            raise ValueError(f"the name of a label has letters, digits and _, not {name!r}")
        if not isinstance(value, str):
            raise ValueError(f"the value of the label {name} must be a text, not {value!r}")
    return dict(labels)


def _now() -> float:
    return datetime.now(UTC).timestamp()


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
