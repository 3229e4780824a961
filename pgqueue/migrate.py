"""Bring the schema up or down with Alembic, from Python and without an alembic.ini.

One call is one transaction, or part of the caller's transaction: it takes effect as a whole or not at all. Therefore no
step can use CREATE INDEX CONCURRENTLY; a queue's tables are small enough without it.

Alembic and SQLAlchemy are imported inside the functions: they take 0.3 s, and `import pgqueue` needs neither.
"""

from __future__ import annotations

import io
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import psycopg
from psycopg.rows import tuple_row

from ._values import conninfo
from .errors import Error, SchemaError

if TYPE_CHECKING:
    from alembic.config import Config
    from sqlalchemy import Connection as AlchemyConnection

    Borrowable = psycopg.Connection[Any] | AlchemyConnection

VERSION_TABLE: dict[str, Any] = {"version_table": "schema_version", "version_table_schema": "pgqueue"}

LOCK = int.from_bytes(b"pgqueue")  # the advisory lock: one migration at a time in a database
PATH = "pg_catalog, pg_temp"  # the search_path of a migration, never the caller's
LOCK_TIMEOUT = "5s"  # while a migration waits for a table lock, every later put waits behind it
PATIENCE = 300.0  # seconds to wait for another migration
SERVERS = 1024  # how many numbers of servers there are: sql/2_base/server.sql

_alembic = threading.Lock()  # Alembic's context is a global of the process
_REFUSALS = {
    "PQ048": "",  # raised by set_server and citus.sql
    "PQ090": "",  # raised by the down files: rows would be lost
    "PQ091": "",  # raised by bound.sql and owned.sql: an object of pgqueue depends on another role's, or belongs to it
    "2BP01": "",  # dependent_objects_still_exist
    "55P03": "a table of pgqueue stayed locked, so nothing was changed; try again: ",  # lock_not_available
}


@dataclass(frozen=True, slots=True)
class Status:
    """The version of a database's schema, compared with this library's."""

    current: str | None
    head: str
    pending: tuple[str, ...]
    state: str

    def __str__(self) -> str:
        return f"{self.state} (database: {self.current or 'nothing'}, library: {self.head})"


def up(
    dsn: str | None = None,
    *,
    connection: Borrowable | None = None,
    revision: str = "head",
    server: int | None = None,
) -> None:
    """Upgrade to `revision`. At the newest one, the functions and views are created again.

    `dsn` is a libpq URI or conninfo string; without it the PG* environment variables count. A ServerError is raised for
    one that is malformed.
    `connection` is a connection of psycopg or SQLAlchemy: the upgrade is part of its transaction and does not commit
    it. (A psycopg connection in autocommit has no transaction; there the upgrade makes one of its own.)
    `server` numbers this server as one of several, 1 to 1023, before its first put; by default it stays as it is. A
    SchemaError is raised if it has another number, or has put tasks; then nothing is changed.
    """
    from alembic import command

    if server is not None and not 1 <= server < SERVERS:
        raise ValueError(f"the number of a server is 1 to {SERVERS - 1}, not {server}")
    with _config(dsn, connection) as config, _turn(config):
        command.upgrade(config, revision)
        if server is not None:
            config.attributes["connection"].exec_driver_sql(f"SELECT pgqueue.set_server({server:d})")


def down(
    dsn: str | None = None,
    *,
    connection: Borrowable | None = None,
    revision: str = "-1",
    force: bool = False,
) -> None:
    """Downgrade to `revision`, by default one step; "base" removes all but the empty version table.

    Refuses if tasks would be lost, unless `force` is set. The functions stay those of this library until the `up` of
    an older library replaces them.
    """
    from alembic import command

    with _config(dsn, connection, force) as config, _turn(config):
        command.downgrade(config, revision)


def status(dsn: str | None = None, *, connection: Borrowable | None = None) -> Status:
    """Compare the database's version with this library's; changes nothing."""
    from alembic.runtime.migration import MigrationContext
    from alembic.script import ScriptDirectory

    with _config(dsn, connection) as config:
        script = ScriptDirectory.from_config(config)
        context = MigrationContext.configure(config.attributes["connection"], opts=VERSION_TABLE)
        current = context.get_current_revision()
    revisions = [step.revision for step in script.walk_revisions()][::-1]
    if current is not None and current not in revisions:
        return Status(current, revisions[-1], (), "newer than this library")
    pending = tuple(revisions[revisions.index(current) + 1 :] if current else revisions)
    state = "up to date" if not pending else "behind" if current else "not installed"
    return Status(current, revisions[-1], pending, state)


def sql(revision: str = "head", *, down: bool = False, force: bool = False) -> str:
    """The SQL that `up` or `down` would run, as one transaction for psql. Needs no database.

    `revision` is the last revision of an upgrade from an empty database, or "from:to". A downgrade needs both, for
    example "0001:base".
    """
    from alembic import command

    config = _offline(force if down else None)
    with _clear_errors(), _alembic:
        (command.downgrade if down else command.upgrade)(config, revision, sql=True)
    script: str = config.attributes["script"].getvalue()
    # A downgrade to base leaves the version table, and Alembic's offline output assumes that there is none.
    return script.replace("CREATE TABLE pgqueue.schema_version", "CREATE TABLE IF NOT EXISTS pgqueue.schema_version", 1)


def run_file(name: str) -> None:
    """For a revision: run one file of migrations/sql."""
    run((_home() / "sql" / name).read_text("utf-8"))


def run(statements: str) -> None:
    """For a revision and env.py: run SQL unchanged, or print it when offline.

    op.execute() reads ':name' as a parameter, and offline it doubles each '%', which breaks format() and RAISE.
    """
    from alembic import context

    migration = context.get_context()
    if migration.as_sql:
        migration.impl.static_output(statements.strip())
    else:
        assert migration.connection is not None
        migration.connection.exec_driver_sql(statements, execution_options={"no_parameters": True})


@contextmanager
def commanded(config: Config, dsn: Callable[[], str]) -> Iterator[None]:
    """For env.py under the command `alembic`: give its configuration a connection, as `up` and `down` do.

    An error becomes one that `alembic` prints in one line.
    """
    from alembic.util.exc import CommandError

    try:
        with _clear_errors(), _owned(dsn()) as alchemy:
            config.attributes["connection"] = alchemy
            with _turn(config):
                yield
    except (Error, psycopg.Error) as error:
        raise CommandError(str(error).strip()) from error


def _home() -> Path:
    """The folder migrations/: inside the package when installed, beside it in a checkout."""
    here = Path(__file__).resolve().parent
    return next(p for p in (here / "migrations", here.parent / "migrations") if (p / "env.py").is_file())


def _offline(force: bool | None = None) -> Config:
    from alembic.config import Config

    script = io.StringIO()
    config = Config(output_buffer=script)
    config.set_main_option("script_location", str(_home()).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    config.attributes.update(script=script, force=force)
    return config


@contextmanager
def _config(dsn: str | None, connection: Borrowable | None, force: bool | None = None) -> Iterator[Config]:
    """Alembic's configuration with a connection in its attributes, in a transaction."""
    with _clear_errors(), _owned(dsn) if connection is None else _borrowed(connection) as alchemy:
        config = _offline(force)
        config.attributes["connection"] = alchemy
        yield config


@contextmanager
def _turn(config: Config) -> Iterator[None]:
    """Wait until no other migration runs in the database. The next migration waits for this transaction to end.

    The lock is polled, since a blocked pg_advisory_lock() holds a snapshot, and that holds up every vacuum. It is a
    transaction's lock, since behind a transaction pooler a session's lock would never be released.
    """
    from sqlalchemy import text

    connection = config.attributes["connection"]
    deadline = time.monotonic() + PATIENCE
    while not connection.scalar(text(f"SELECT pg_catalog.pg_try_advisory_xact_lock({LOCK})")):
        if time.monotonic() > deadline:
            raise SchemaError(f"another migration of pgqueue has been running for {PATIENCE:.0f} s")
        time.sleep(0.1)
    with _alembic:
        yield


@contextmanager
def _owned(dsn: str | None) -> Iterator[AlchemyConnection]:
    # psycopg parses the dsn: SQLAlchemy accepts only URLs, and supports neither services nor the PG* environment.
    given = conninfo.plain(dsn or "")
    with psycopg.connect(given, fallback_application_name="pgqueue migrate", client_encoding="UTF8") as own:
        # After waiting for another migration, this one has to see its commit: so not the database's default.
        own.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
        own.execute("SELECT pg_catalog.set_config('lock_timeout', %s, true)", [LOCK_TIMEOUT])
        with _borrowed(own) as alchemy:
            yield alchemy


@contextmanager
def _borrowed(connection: Borrowable) -> Iterator[AlchemyConnection]:
    if isinstance(connection, psycopg.Connection):
        # Pinned before SQLAlchemy sees the connection, since its first look calls current_schema() by the path.
        with _transaction_if_none(connection), _pinned(_asker(connection)), _wrapped(connection) as alchemy:
            yield alchemy
        return
    from sqlalchemy import Connection

    if not isinstance(connection, Connection):
        raise TypeError(f"connection must be a Connection of psycopg or SQLAlchemy, not {type(connection).__name__}")
    if getattr(connection.connection.driver_connection, "autocommit", False):
        raise ValueError("a SQLAlchemy connection in AUTOCOMMIT has no transaction to work in")
    with _pinned(lambda query: str(connection.exec_driver_sql(query).scalar())):
        yield connection


def _asker(connection: psycopg.Connection[Any]) -> Callable[[str], str]:
    """A function that runs a query and returns its one value."""

    def ask(query: str) -> str:
        # Not connection.execute(): the caller may have set factories that return dicts.
        row = psycopg.Cursor(connection, row_factory=tuple_row).execute(query.encode()).fetchone()
        return str(row[0]) if row else ""

    return ask


@contextmanager
def _pinned(ask: Callable[[str], str]) -> Iterator[None]:
    """Give the transaction a search_path of its own, and the caller's path back at the end.

    With the caller's, a function, an operator or a type that another role planted in `public` could take the place of
    the server's: it would run with the rights of the migration, or stay bound into pgqueue's functions.
    """
    before = ask("SELECT pg_catalog.current_setting('search_path')")
    ask(f"SELECT pg_catalog.set_config('search_path', '{PATH}', true)")
    restore = "SELECT pg_catalog.set_config('search_path', '{}', true)".format(before.replace("'", "''"))
    try:
        yield
    except BaseException:
        # A failed transaction takes no statement, and its rollback gives the path back.
        with suppress(Exception):
            ask(restore)
        raise
    ask(restore)


@contextmanager
def _transaction_if_none(connection: psycopg.Connection[Any]) -> Iterator[None]:
    """Give an autocommit connection a transaction.

    Only such a connection gets one: on any other, transaction() may be the outermost block, and would commit a
    transaction that the caller rolls back later.
    """
    if not connection.autocommit:
        yield
        return
    with connection.transaction():
        yield


@contextmanager
def _wrapped(connection: psycopg.Connection[Any]) -> Iterator[AlchemyConnection]:
    """A SQLAlchemy connection on a psycopg connection, which SQLAlchemy must not commit, roll back or close."""
    import sqlalchemy

    engine = sqlalchemy.create_engine(
        "postgresql+psycopg://",
        creator=lambda: _Wrapper(connection),
        poolclass=sqlalchemy.NullPool,
        use_native_hstore=False,  # would register adapters on the caller's connection
    )
    with engine.connect() as alchemy:
        yield alchemy


class _Wrapper:
    """A psycopg connection with a transaction that SQLAlchemy cannot end.

    SQLAlchemy rolls back after its first look at a new connection, and again when it returns the connection to the
    pool. A second psycopg.Connection over the same libpq connection would be less code, but it would take over the
    first one's notices.
    """

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection

    def cursor(self) -> psycopg.Cursor[tuple[Any, ...]]:
        # Not connection.cursor(): the caller may have set factories that return dicts.
        return psycopg.Cursor(self._connection, row_factory=tuple_row)

    def commit(self) -> None:
        pass

    rollback = close = commit

    def add_notice_handler(self, handler: object) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)


@contextmanager
def _clear_errors() -> Iterator[None]:
    """Turn the errors of Alembic and SQLAlchemy into pgqueue's or the driver's."""
    from alembic.util.exc import CommandError
    from sqlalchemy.exc import DBAPIError

    try:
        yield
    except CommandError as error:
        raise SchemaError(str(error)) from error
    except DBAPIError as error:
        prefix = _REFUSALS.get(getattr(error.orig, "sqlstate", None) or "")
        if prefix is None:
            raise (error.orig or error) from None
        diag = cast(psycopg.Error, error.orig).diag
        parts = (diag.message_primary, diag.message_detail, diag.message_hint)
        raise SchemaError(prefix + "\n".join(filter(None, parts))) from error
