"""One client for each database of Django's, made of its settings there.

A test runner puts another database's name into the settings while the process runs, so a client is kept together with
what it was made of, and replaced when that changes.
"""

from __future__ import annotations

import threading
from dataclasses import fields
from typing import Any, TypeVar

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.db import connections
from django.db.backends.base.base import NO_DB_ALIAS, BaseDatabaseWrapper
from psycopg import ProgrammingError
from psycopg.conninfo import make_conninfo

from ... import Client, Error, Queue, forks
from ...calls import Call
from ...calls.putting import Placed, PutManyOptions, PutOptions
from ...core import Settings
from ...dsn import plain

T = TypeVar("T")

Origin = tuple[dict[str, Any], dict[str, Any]]  # the parameters of a connection, and the options of Client

#: What get_connection_params() has for psycopg itself, and not for the server.
NOT_CONNINFO = ("context", "cursor_factory", "row_factory", "prepare_threshold", "autocommit")


def client(using: str = "default") -> Client:
    """The client of a database: one a process, safe in every thread and after a fork. Connects at its first call.

    Its connections are its own, so nothing of it is part of a transaction of Django's, unless it is given one with
    `conn=`. What a queue does in Django's transaction begins with queue().

    Args:
        using: the alias of the database in DATABASES. The setting PGQUEUE may have options for it.

    Raises:
        ImproperlyConfigured: there is no such database, it is not PostgreSQL, or its options in PGQUEUE are wrong.
    """
    return _clients.get(using)[0]


def queue(name: str, using: str = "default") -> Queue:
    """The queue of this name, on Django's own connection to a database.

    Whatever is one statement (put, put_many, pop, ack, stats, ...) goes through `connections[using]`, and is part of
    whatever transaction that is in: what is put inside atomic() is there if and when that commits. What waits (take,
    or a put with a timeout) has connections of its own.

    Args:
        name: 1 to 200 characters.
        using: the alias of the database in DATABASES.

    Raises:
        ValueError: the name cannot be.
        ImproperlyConfigured: as client().
    """
    return _clients.get(using)[1].queue(name)


def wrapper(using: str) -> BaseDatabaseWrapper:
    """Django's connection to a database, of this thread. Raises ImproperlyConfigured if pgqueue cannot be there."""
    if using not in connections.settings:
        known = ", ".join(repr(alias) for alias in connections)
        raise ImproperlyConfigured(f"pgqueue: there is no database {using!r} in DATABASES, only {known}")
    found: BaseDatabaseWrapper = connections[using]
    if found.vendor != "postgresql":
        raise ImproperlyConfigured(
            f"pgqueue: the database {using!r} is {found.display_name}, and pgqueue needs PostgreSQL"
        )
    return found


def conninfo(using: str) -> str:
    """How libpq is told to connect to one of Django's databases. Raises ImproperlyConfigured."""
    try:
        return make_conninfo(**_parameters(using))
    except ProgrammingError as error:
        raise ImproperlyConfigured(f"pgqueue: OPTIONS of the database {using!r}: {error}") from None


def _parameters(using: str) -> dict[str, Any]:
    connection = wrapper(using)
    params = connection.get_connection_params()
    for name in NOT_CONNINFO:
        params.pop(name, None)
    if role := connection.settings_dict["OPTIONS"].get("assume_role"):
        quoted = str(role).replace("\\", r"\\").replace(" ", r"\ ")
        params["options"] = f"{params.get('options', '')} -c role={quoted}".strip()
    return params


def options(using: str) -> dict[str, Any]:
    """The options of Client in the setting PGQUEUE."""
    given: dict[str, Any] = getattr(settings, "PGQUEUE", {}).get(using, {})
    return given


def fault(options: dict[str, Any]) -> str | None:
    """What is wrong with options of a client, or None. Connects nowhere."""
    known = [field.name for field in fields(Settings) if field.name != "dsn"]
    if unknown := [name for name in options if name not in known]:
        return f"there is no option {unknown[0]!r}, only {', '.join(known)}"
    listen_dsn = options.get("listen_dsn")
    if not isinstance(listen_dsn, str | None):
        return f"listen_dsn must be a string, not {listen_dsn!r}"
    try:
        Settings(**options)
        plain(listen_dsn or "")
    except (Error, ValueError) as error:
        return str(error)
    return None


class Joined(Client):
    """A client whose calls run on Django's connection, which is looked up at each call: it is another in each thread.

    It shares the connections of the client that it is made over.
    """

    _using: str

    @classmethod
    def over(cls, client: Client, using: str) -> Joined:
        self = cls._over(client._core)
        self._using = using
        self._connections = client._connections
        return self

    def _run(self, call: Call[T], conn: Any = None, *, relaxed: bool = False) -> T:
        return super()._run(call, conn or connections[self._using], relaxed=relaxed)

    def _put(self, queue: str, call: Call[Placed], options: PutOptions, conn: Any, timeout: float | None) -> Placed:
        joined = connections[self._using]
        if timeout is None or not joined.get_autocommit():  # where a timeout is refused
            conn = conn or joined
        return super()._put(queue, call, options, conn, timeout)

    def _put_many(self, queue: str, items: Any, options: PutManyOptions, conn: Any) -> list[int]:
        return super()._put_many(queue, items, options, conn or connections[self._using])


class _Clients:
    """Both clients of each database, and what they were made of."""

    def __init__(self) -> None:
        self._made: dict[str, tuple[Origin, Client, Joined]] = {}
        self._lock = threading.Lock()
        forks.register(self)

    def get(self, using: str) -> tuple[Client, Joined]:
        origin = (_parameters(using), options(using))
        with self._lock:
            known = self._made.get(using)
            if known is None or known[0] != origin:
                new = self._make(using, origin[1])
                self._made[using] = (origin, *new)
                if known is not None:
                    known[1].close()
            return self._made[using][1:]

    def close(self) -> None:
        """Let go of all; those that are asked for afterwards are new."""
        with self._lock:
            made, self._made = self._made, {}
        for _, client, _ in made.values():
            client.close()

    def after_fork(self) -> None:
        self._lock = threading.Lock()

    def _make(self, using: str, options: dict[str, Any]) -> tuple[Client, Joined]:
        if wrong := fault(options):
            raise ImproperlyConfigured(f"pgqueue: PGQUEUE[{using!r}]: {wrong}")
        made = Client(conninfo(using), **options)
        return made, Joined.over(made, using)


_clients = _Clients()
close = _clients.close


def let_go_of_test_databases(sender: object, connection: BaseDatabaseWrapper, **kwargs: object) -> None:
    """Django connects to no database to create or drop one for tests, which fails while a client is connected to it."""
    if connection.alias == NO_DB_ALIAS:
        close()
