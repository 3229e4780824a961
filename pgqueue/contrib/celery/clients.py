"""The clients of a process: one for each database, however many connections kombu opens.

A client is a listener connection and two pools, which all connections of kombu to the database share. So thousands of
kombu's connections cost the server no more than one.
"""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl

from kombu.utils.url import as_url
from psycopg.pq import Conninfo

from ... import Client

MAX_DATA_SIZE = 64 * 1024 * 1024  # bytes; a broker does not refuse what Celery's users send


@dataclass(slots=True)
class Lent:
    client: Client
    users: int = 0


class Clients:
    """Lends clients, and closes one when its last user has gone. Thread-safe."""

    def __init__(self) -> None:
        self._forget()
        os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        """In a fork: a thread may have held the lock, and the parent's clients are the parent's to close."""
        self._lock = threading.Lock()
        self._lent: dict[str, Lent] = {}

    def borrow(self, dsn: str, connect_timeout: float) -> Client:
        """The client for a DSN; "" is the default one. Give it back with give_back()."""
        with self._lock:
            lent = self._lent.get(dsn)
            if lent is None:
                client = Client(dsn or None, connect_timeout=connect_timeout, max_data_size=MAX_DATA_SIZE)
                lent = self._lent[dsn] = Lent(client)
            lent.users += 1
            return lent.client

    def give_back(self, dsn: str, client: Client) -> None:
        """End a use. The last one closes the client."""
        with self._lock:
            lent = self._lent.get(dsn)
            if lent is None or lent.client is not client:
                return  # it was lent before a fork
            lent.users -= 1
            if lent.users > 0:
                return
            del self._lent[dsn]
        client.close()


CLIENTS = Clients()


def url_of(connection: Any) -> str:
    """The URL of one of kombu's connections. It has read the URL itself where it has switched from another one."""
    if "://" in (connection.hostname or ""):
        return str(connection.hostname)
    user, password, port = connection.userid, connection.password, connection.port
    return str(as_url("pgqueue", connection.hostname, port, user, password, connection.virtual_host.lstrip("/")))


def dsn_of(url: str) -> str:
    """The DSN of a URL, `pgqueue://user:password@host:port/database?sslmode=require`.

    All after the scheme is as in a URI of libpq, several hosts and any parameter of it included. Nothing after the
    scheme is "", for PGQUEUE_DSN, DATABASE_URL or the embedded server.

    Raises:
        ValueError: libpq has no such parameter. kombu would try again and again after an error of the connection.
    """
    rest = url.partition("://")[2]
    known = {option.keyword.decode() for option in Conninfo.get_defaults()}
    for name, _ in parse_qsl(rest.partition("?")[2], keep_blank_values=True):
        if name not in known:
            raise ValueError(f"a URL of pgqueue has no option {name!r}: its options are the parameters of libpq")
    return f"postgresql://{rest}" if rest.strip("/") else ""


def without_password(url: str, mask: str) -> str:
    """The URL, with a mask in place of its password."""
    scheme, _, rest = url.partition("://")
    before, at, after = rest.rpartition("@")
    user, colon, _ = before.partition(":")
    return f"{scheme}://{user}:{mask}{at}{after}" if colon else url
