"""Graphite: the numbers of tasks, in its plaintext protocol, once a period.

    <prefix>.<queue>.<key> <whole number> <seconds since 1970>

By TCP, a report is one send on a connection that stays open; by UDP, one datagram a line. While the Graphite server is
away its reports are lost; puts and takes work as usual.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from typing import Literal, Self, get_args

from .._calls import stats as counting
from .._calls.stats import Stats
from .._sync.client import Client
from .._values import printable
from .._values.arguments import Seconds
from .links import PORT, Transport, link
from .reading import Outage, Reader, checked, chosen, positive, stats_of
from .rounds import Rounds

Key = Literal["total", "ready", "delayed", "taken", "buried", "blocked", "done", "kept", "oldest_ready_age"]
USUAL: tuple[Key, ...] = ("total", "ready", "delayed", "taken")

_PREFIX = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")


class GraphiteReporter:
    """Sends the lengths of queues to Graphite, from a thread that begins at once. Closed at the end of a `with` block.

    Args:
        client: the client to read with; a blocking Client, which stays open.
        host: the server's name or address.
        port: its port for the plaintext protocol.
        protocol: tcp or udp.
        prefix: the beginning of each path: words of letters, digits, _ and -, with dots between them.
        interval: seconds between reports, or a timedelta.
        queues: a queue's name, or several; zeros are sent for one that does not exist. None: all queues.
        keys: the figures to send: those of Queue.stats except `calls`. Whole numbers, ages in seconds.
        elect: a name, as for Client.elect: of all processes that report under this name only the elected leader sends
            reports. For web servers with many workers. Needs a listener connection. None: each process reports.

    In the path of a queue every character other than ASCII letters, digits, _ and - is replaced: an ASCII character by
    _, any other by its number. The figures of queues with the same path are added up.

    After the start, a failure is logged when it begins and when it is over. A forked child does not report.

    Raises:
        ServerError: the host's name cannot be resolved.
        ValueError: an argument is not valid.
    """

    def __init__(
        self,
        client: Client,
        host: str,
        port: int = PORT,
        protocol: Transport = "tcp",
        *,
        prefix: str = "pgqueue",
        interval: Seconds = 1.0,
        queues: str | Sequence[str] | None = None,
        keys: Sequence[Key] = USUAL,
        elect: str | None = None,
    ) -> None:
        names = chosen(queues)
        checked(client)
        self._prefix, self._keys = _checked_prefix(prefix), _checked_keys(keys)
        self._link = link(host, port, protocol)
        self._outage = Outage(f"Graphite at {host}:{port} gets no report")
        self._reader = Reader(lambda: stats_of(client, names))
        interval = positive("interval", interval)
        election = None if elect is None else client.elect(elect)
        self._rounds = Rounds("pgqueue-graphite", self._report, interval, election)

    def close(self) -> None:
        """Stop reporting, and wait for the end of the thread. May be called twice."""
        self._rounds.close()
        self._link.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _report(self, rounds: Rounds) -> float | None:
        found = self._reader.read() if rounds.leading else None
        if found:
            try:
                self._link.send(lines(found, self._prefix, self._keys, int(time.time())))
            except OSError as error:
                self._outage.failed(error)
                return self._link.pause
            self._outage.worked()
        return None


# --- the reports


def lines(found: Mapping[str, Stats], prefix: str, keys: Sequence[Key], at: int) -> list[str]:
    """A report: a line for each queue and key, all with one timestamp."""
    paths: dict[str, list[Stats]] = {}
    for name, stats in sorted(found.items()):
        paths.setdefault(f"{prefix}.{printable.path_part(name)}", []).append(stats)
    return [
        f"{path}.{key} {int(counting.summed(several)[key] or 0)} {at}\n"
        for path, several in paths.items()
        for key in keys
    ]


def _checked_prefix(prefix: str) -> str:
    if not isinstance(prefix, str) or not _PREFIX.fullmatch(prefix):
        raise ValueError(f"prefix must be words of letters, digits, _ and -, with dots between, not {prefix!r}")
    return prefix


def _checked_keys(keys: Sequence[Key]) -> tuple[Key, ...]:
    if not keys or set(keys) - set(get_args(Key)):
        raise ValueError(f"keys are some of {', '.join(get_args(Key))}, not {keys!r}")
    return tuple(keys)
