"""The ways of a report to Graphite: TCP or UDP, to a server that may be away for a time."""

from __future__ import annotations

import contextlib
import select
import socket
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Literal, get_args

from .._engine import forks
from .._values import arguments
from .._values.logs import log
from ..errors import ServerError

Transport = Literal["tcp", "udp"]

PORT = 2003  # of Graphite's plaintext protocol
PAUSE = 1.0  # seconds before another attempt to connect
TIMEOUT = 5.0  # seconds for a connect, and for a send


class Link(ABC):
    """A connection to Graphite, by TCP or UDP.

    Attributes:
        pause: seconds before another attempt when a send failed; None: wait for the next report.
    """

    pause: float | None

    def __init__(self, host: str, port: int) -> None:
        self._address = (host, port)
        self._conn: socket.socket | None = None
        forks.register(self)

    @abstractmethod
    def send(self, report: Sequence[str]) -> None:
        """Send the lines; connects if need be. Raises OSError."""

    def close(self) -> None:
        if self._conn is not None:
            self._conn.close()
            self._conn = None

    def after_fork(self) -> None:
        self.close()  # a copy of a file descriptor: the parent's connection lives on


def link(host: str, port: int, protocol: Transport) -> Link:
    """A link to a server. Raises ServerError if the host's name cannot be resolved, ValueError."""
    if not isinstance(host, str) or not host:
        raise ValueError(f"host must be a name or an address, not {host!r}")
    if arguments.integer("port", port, 1, 65535) is None:
        raise ValueError("port must be a whole number from 1 to 65535, not None")
    if protocol not in get_args(Transport):
        raise ValueError(f"protocol must be tcp or udp, not {protocol!r}")
    try:
        socket.getaddrinfo(host, port)
    except (OSError, UnicodeError) as error:
        raise ServerError(f"the Graphite host {host!r} cannot be resolved: {error}") from None
    return _Tcp(host, port) if protocol == "tcp" else _Udp(host, port)


class _Tcp(Link):
    pause = PAUSE

    def send(self, report: Sequence[str]) -> None:
        data = "".join(report).encode()
        if self._conn is not None:
            try:
                return self._send(self._conn, data)
            except OSError as error:
                log.warning("the connection to Graphite at %s:%s is lost: %s", *self._address, error)
        self._conn = socket.create_connection(self._address, TIMEOUT)
        with contextlib.suppress(AttributeError):  # Linux only: give up early on a host that has vanished
            self._conn.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(TIMEOUT * 1000))
        return self._send(self._conn, data)

    def _send(self, conn: socket.socket, data: bytes) -> None:
        try:
            if _hung_up(conn):
                raise ConnectionResetError("it was closed there")
            conn.sendall(data)
        except OSError:
            self.close()  # half a report may have been sent
            raise


class _Udp(Link):
    pause = None

    def send(self, report: Sequence[str]) -> None:
        if self._conn is None:
            family, kind, protocol, _, address = socket.getaddrinfo(*self._address, type=socket.SOCK_DGRAM)[0]
            self._conn = socket.socket(family, kind, protocol)
            self._conn.connect(address)  # else the error of a port without a listener would not be reported
        failure = None
        for line in report:
            try:
                self._conn.send(line.encode())
            except OSError as error:  # possibly caused by the datagram before this one
                failure = error
        if failure is not None:
            self.close()  # the next report resolves the host again
            raise failure


def _hung_up(conn: socket.socket) -> bool:
    """Whether the other end is closed. A send would not tell: the first send after the close succeeds and is lost."""
    poll = select.poll()
    poll.register(conn, select.POLLIN)
    return bool(poll.poll(0)) and not conn.recv(4096)
