"""Whether a worker is alive and ready, over HTTP, for orchestrators.

`GET /live`: 200 while the worker's own threads go on; 503 if one of them has ended or hangs. A database that is away is
no reason: a restart would not mend that. `GET /ready`: 200 while the worker takes tasks: it has begun, does not stop,
has a session in the database, and no task waits for long while its runners are idle (neglect.py); else 503. The body is
one line of text that says why. A probe costs the database nothing while tasks are worked off, and one small query every
ten seconds while the worker is idle.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import NamedTuple

from ..errors import Error

LOOPBACK = "127.0.0.1"


class Report(NamedTuple):
    """Attributes: live; ready; and why not, in words."""

    live: bool
    ready: bool
    why: str | None = None


def address(text: str) -> tuple[str, int]:
    """HOST:PORT, or PORT on the loopback interface. Raises ValueError."""
    host, colon, port = text.rpartition(":")
    if not port.isascii() or not port.isdigit() or int(port) > 65535 or (colon and not host):
        raise ValueError(f"{text!r} is not HOST:PORT, such as 0.0.0.0:8080, nor a port on {LOOPBACK}")
    return host.strip("[]") or LOOPBACK, int(port)


@contextlib.contextmanager
def answering(place: tuple[str, int] | None, report: Callable[[], Report]) -> Iterator[None]:
    """Answer probes within this block; None: none. Raises Error: it cannot listen on that address."""
    if place is None:
        yield
        return
    from .probes import Server  # http.server and the modules that it needs are for a worker that has --health

    try:
        server = Server(*place, report)
    except OSError as error:
        raise Error(f"--health {place[0]}:{place[1]}: {error.strerror or error}") from error
    try:
        yield
    finally:
        server.close()
