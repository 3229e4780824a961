"""One client for each of Django's databases, made from the database's settings.

A test runner changes a database's name in the settings while the process runs, so a client is kept together with the
settings that it was made from, and replaced when they change.
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

from ... import Client, Error, Queue
from ..._calls.call import Call
from ..._engine import forks
from ..._engine.core import Settings
from ..._engine.dsn import plain
from ..._sync.shell import Shell

T = TypeVar("T")

Origin = tuple[dict[str, Any], dict[str, Any]]  # the parameters of a connection, and the options of Client

#: The parameters in get_connection_params() that are for psycopg itself and not for libpq.
NOT_CONNINFO = ("context", "cursor_factory", "row_factory", "prepare_threshold", "autocommit")


def client(using: str = "default") -> Client:
    """The client of a database: one for the process, safe in every thread and after a fork. Connects at its first call.

    It has connections of its own, so its calls are not part of Django's transactions, unless they get Django's
    connection with `conn=`. For calls in Django's transaction use queue().

    Args:
        using: the alias of the database in DATABASES. The setting PGQUEUE may have options for it.

    Raises:
        ImproperlyConfigured: there is no such database, it is not PostgreSQL, or its options in PGQUEUE are wrong.
    """
    return _clients.get(using)[0]


def queue(name: str, using: str = "default") -> Queue:
    """The queue of this name, on Django's own connection to a database.

    A call of one statement (put, put_many, pop, ack, stats, ...) runs on `connections[using]`, as part of its
    transaction: a put inside atomic() takes effect when that commits. A call that waits (take, or a put or pop with a
    timeout) uses the client's own connections; inside atomic() such a put or pop raises ValueError.

    Args:
        name: 1 to 200 characters.
        using: the alias of the database in DATABASES.

    Raises:
        ValueError: the name is not valid.
        ImproperlyConfigured: as client().
    """
    return joined(using).queue(name)


def joined(using: str = "default") -> Client:
    """A client with calls that run on Django's own connection to a database; see queue()."""
    return _clients.get(using)[1]


def wrapper(using: str) -> BaseDatabaseWrapper:
    """This thread's Django connection to a database. Raises ImproperlyConfigured if pgqueue cannot use it."""
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
    """The libpq connection string of one of Django's databases. Raises ImproperlyConfigured."""
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
    """The error in options of a client, or None. Does not connect."""
    known = [field.name for field in fields(Settings) if field.name != "dsn"]
    if unknown := [name for name in options if name not in known]:
        return f"there is no option {unknown[0]!r}, only {', '.join(known)}"
    listen_dsn = options.get("listen_dsn")
    if not isinstance(listen_dsn, str | None):
        return f"listen_dsn must be a string, not {type(listen_dsn).__name__}"
    try:
        Settings.of(**options)
        plain(listen_dsn or "")
    except (Error, ValueError) as error:
        return str(error)
    return None


class JoinedShell(Shell):
    """Runs calls on Django's connection, which it looks up at each call, since each thread has another one.

    For calls that wait it uses the connections of its client.
    """

    def __init__(self, client: Client, using: str) -> None:
        super().__init__(client.shell.core)
        self.connections = client.shell.connections
        self.together = None  # a put of another thread is in another transaction
        self._using = using

    def joined(self, *, waiting: bool = False) -> Any:
        joined = connections[self._using]
        return None if waiting and joined.get_autocommit() else joined

    def run(self, call: Call[T], conn: Any = None, *, relaxed: bool = False, within: float | None = None) -> T:
        return super().run(call, conn or connections[self._using], relaxed=relaxed)


class _Clients:
    """Both clients of each database, and the settings that they were made from.

    The objects that an application registers with a client, for example jobs and middleware, outlive the client: the
    first client of a database keeps them for the later ones.
    """

    def __init__(self) -> None:
        self._first: dict[str, Client] = {}
        self._made: dict[str, tuple[Origin, Client, Client]] = {}
        self._lock = threading.Lock()
        forks.register(self)

    def get(self, using: str) -> tuple[Client, Client]:
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
        """Close all clients. Later calls make new ones."""
        with self._lock:
            made, self._made = self._made, {}
        for _, client, _ in made.values():
            client.close()

    def after_fork(self) -> None:
        self._lock = threading.Lock()

    def _make(self, using: str, options: dict[str, Any]) -> tuple[Client, Client]:
        if wrong := fault(options):
            raise ImproperlyConfigured(f"pgqueue: PGQUEUE[{using!r}]: {wrong}")
        made = Client(conninfo(using), **options)
        joined = Client.over(JoinedShell(made, using))
        first = self._first.setdefault(using, made)
        for one in (made, joined):
            one.share_jobs(first)
            one.schedules.declared = first.schedules.declared
        return made, joined

    def with_jobs(self) -> list[str]:
        """The aliases of the databases with jobs or batch handlers."""
        return [alias for alias, first in self._first.items() if first.jobs or first.batch_handlers]


_clients = _Clients()
close = _clients.close
with_jobs = _clients.with_jobs


def let_go_of_test_databases(sender: object, connection: BaseDatabaseWrapper, **kwargs: object) -> None:
    """Close the clients before Django creates or drops a test database: that fails while a client is connected."""
    if connection.alias == NO_DB_ALIAS:
        close()
