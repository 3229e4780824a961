"""How a client's connections are opened, and the checks that it makes once, at its first connection.

Each way to the server is tried with exactly the parameters that the client uses later. So a pooler that refuses them
refuses the check, and the error has its reason.

A connection without a pooler is recognised by a mark: a setting of pgqueue's in `options`. PgBouncer refuses `options`,
or ignores them if it is told to; then the mark is missing.

`listen_dsn` may lead through a pooler in session mode, where a connection of the server belongs to one client. In
transaction mode it does not, and LISTEN and the session's lock would be left on connections of others. Two clients of
the pooler test that: C1 marks the server's connection that it got, C2 begins a transaction and keeps the connection
that it got. In transaction mode C2 finds C1's mark, or C1 finds itself on another connection, or C1 waits for a
connection. A busy pooler may give both the same connections as before by chance, so they try several times.

A check is one attempt. If the server is absent it raises Absent, and the core asks again (core.py). libpq gives no
SQLSTATE for a connection that was refused, and its text is in the language of the server or of the process. So libpq's
ping decides, which knows the SQLSTATE: it tells a server that answers, in any way, from one that does not answer or is
just starting. Ping blocks the interpreter's other threads, so it runs only after an attempt that failed at once. The
server may have started between the attempt and the ping; the second attempt finds out. A limit of connections counts as
an absent server: the client gets a connection when others have ended.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import PGconn, Ping

from .._calls.sqlstates import translate
from ..errors import CallTimeout, Error, LockBlocked, NotRunning, ServerError, SetupError
from . import primaries
from .bounded import KEEPALIVES, BoundedConnection, Late
from .dsn import schema_fault, unreachable
from .outages import Absent
from .scarcity import limit_of, with_remedy

MARK = "pgqueue.direct"
#: Without a pooler. The isolation level overrides the role's default: a claim has to see the takes that were committed
#: while it ran (sql/5_verbs/take/take.sql). The others are KEEPALIVES for the server's end.
OPTIONS = (
    rf"-c {MARK}=yes -c default_transaction_isolation=read\ committed"
    " -c tcp_keepalives_idle=5 -c tcp_keepalives_interval=2 -c tcp_keepalives_count=3 -c tcp_user_timeout=10000"
)
RELAXED = "-c synchronous_commit=off"
ATTEMPT = 2  # seconds for an attempt to connect. A lost SYN is sent again after 1 s, then only at 3 s and 7 s
ROUNDS = 5
PATIENCE = 2.0  # seconds for a statement of the search for a pooler


def opening(conninfo: str, *, pooled: bool, relaxed: bool = False, lock_patience: float = math.inf) -> str:
    """The conninfo of a pool's connections. `pooled`: it leads through a pooler, which accepts no options.

    `lock_patience`: for how many seconds a put waits for others to leave a queue with a capacity (advisory.sql).
    """
    given = conninfo_to_dict(conninfo)
    known: dict[str, Any] = {"application_name": "pgqueue", "connect_timeout": ATTEMPT} | KEEPALIVES | given
    if not pooled:
        patience = "" if lock_patience == math.inf else f"-c pgqueue.patience={lock_patience:g}"
        chosen = [str(given.get("options") or ""), OPTIONS, patience, RELAXED if relaxed else ""]
        known["options"] = " ".join(filter(None, chosen))
    return make_conninfo("", **known | {"client_encoding": "UTF8"})


def check(conninfo: str, *, pooled: bool, timeout: float) -> None:
    """Connect once, with `timeout` seconds for each answer.

    Raises:
        Absent: no server answers there, it is just starting, or a limit of connections is reached.
        ServerError: the server refuses the connection.
        SetupError: a pooler, the role or the database is set up so that pgqueue cannot work.
        SchemaError: the schema does not fit this library.
        ConnectionLost: the server has let the client in, and was gone, or silent, before it had answered.
    """

    with _translated(), _connect(opening(conninfo, pooled=pooled), timeout) as conn:
        if pooled:
            _check_pooled(conn)
        elif not _is_marked(conn):
            raise _pooler("ignores the startup parameter `options`")
        if fault := schema_fault(conn):
            raise fault


def check_listening(listen_dsn: str, timeout: float) -> None:
    """Connect to `listen_dsn` once. Raises as check()."""
    try:
        one = _connect(opening(listen_dsn, pooled=False), timeout)
    except SetupError:  # it refuses options
        one = _connect(opening(listen_dsn, pooled=True), timeout)
    with _translated(), one:
        if not _is_marked(one):
            with _connect(opening(listen_dsn, pooled=True), timeout) as other:
                one.patience = other.patience = min(timeout, PATIENCE)
                if _share(one, other):
                    raise SetupError(
                        "listen_dsn leads through a pooler in transaction mode, where a session's locks and LISTEN are"
                        " lost: let it lead to the server itself, or to a pooler with pool_mode = session"
                    )
        one.patience = timeout
        if fault := schema_fault(one):
            raise fault


@contextmanager
def _translated() -> Iterator[None]:
    """The errors of statements as pgqueue's errors. One without an SQLSTATE means that the connection is lost."""
    try:
        yield
    except Late as error:
        raise CallTimeout(str(error)) from None
    except psycopg.Error as error:
        if (seen := translate(error, lost=error.sqlstate is None)) is error:
            raise
        raise seen from None


def why_read_only(conn: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> NotRunning | None:
    """The error, with its remedy, for a connection on which no queue works; None if queues work, or for another reason.

    PostgreSQL reports both settings to its clients by itself, so this needs no statement.
    """
    if conn.pgconn.parameter_status(b"in_hot_standby") == b"on":
        return NotRunning(
            "queues do not work here: the server is a standby. Connect to the primary; with several hosts in the DSN,"
            " target_session_attrs=read-write finds it"
        )
    if conn.pgconn.parameter_status(b"default_transaction_read_only") == b"on":
        return NotRunning(
            "queues do not work here: the role, the database or the server is read-only, for"
            " default_transaction_read_only is on."
            f' Set it off, for example ALTER ROLE "{conn.info.user}" SET default_transaction_read_only = off'
        )
    return None


def without_session(what: str, reason: BaseException | None) -> Error:
    """The error for a call that needs a session, when the listener could not open one because of `reason`."""
    if isinstance(reason, NotRunning):
        return NotRunning(f"{what} without a session: {reason}")
    if isinstance(reason, psycopg.Error) and reason.sqlstate == "PQ007":
        return LockBlocked(f"{what} without a session: {reason.diag.message_primary}")
    return ServerError(f"{what} without a session: {with_remedy(reason or 'the listener has not connected yet')}")


def _connect(conninfo: str, timeout: float) -> BoundedConnection:
    try:
        conn = _attempt(conninfo)
    except Absent:
        raise
    except ServerError:  # of a server that answers: by now it may be up
        conn = _attempt(conninfo)
    conn.patience = timeout
    return conn


def _attempt(conninfo: str) -> BoundedConnection:
    try:
        conn = BoundedConnection.connect(primaries.chosen(conninfo), autocommit=True, prepare_threshold=None)
        primaries.check(conn, conninfo)
        return conn
    except psycopg.OperationalError as error:
        if "unsupported startup parameter" in str(error):
            raise _pooler(f"refuses a parameter ({str(error).strip()})") from None
        reason = unreachable(conninfo, error)
        if isinstance(error, psycopg.errors.ConnectionTimeout) or limit_of(error):
            raise Absent(str(reason)) from None
        if PGconn.ping(conninfo.encode()) != Ping.OK:
            raise Absent(str(reason)) from None
        raise reason from None


def _is_marked(conn: BoundedConnection) -> bool:
    return conn.execute("SELECT pg_catalog.current_setting(%s, true)", [MARK]).fetchone() == ("yes",)


def _pooler(what: str) -> SetupError:
    return SetupError(
        f"dsn leads through a pooler, which {what}: let dsn lead to the server itself, or give the client a second DSN"
        " without the pooler, listen_dsn"
    )


def _check_pooled(conn: BoundedConnection) -> None:
    try:
        with conn.transaction():
            (level,) = conn.execute(
                "SELECT pg_catalog.current_setting('default_transaction_isolation')"
            ).fetchone() or ("",)
    except psycopg.Error as error:
        raise _refused(error, conn) from None
    if level != "read committed":
        raise SetupError(
            f"default_transaction_isolation is {level!r}, and pgqueue cannot override it through a pooler:"
            f" ALTER ROLE \"{conn.info.user}\" SET default_transaction_isolation = 'read committed'"
        )


def _share(one: BoundedConnection, other: BoundedConnection) -> bool:
    """Whether two clients of a pooler share connections of the server."""
    return any(_meet(one, other) for _ in range(ROUNDS))


def _meet(one: BoundedConnection, other: BoundedConnection) -> bool:
    mark = secrets.token_hex(8)
    first = one.execute(
        "SELECT pg_catalog.pg_backend_pid() FROM pg_catalog.set_config('pgqueue.door', %s, false)", [mark]
    ).fetchone()
    try:
        with other.transaction():
            if other.execute("SELECT pg_catalog.current_setting('pgqueue.door', true)").fetchone() == (mark,):
                return True
            try:
                return one.execute("SELECT pg_catalog.pg_backend_pid()").fetchone() != first
            except Late:  # `other` keeps the only connection, which `one` would have to itself in session mode
                return True
    except Late:  # `one` keeps the only connection
        return False
    except psycopg.Error as error:
        raise _refused(error, other) from None


def _refused(error: psycopg.Error, conn: BoundedConnection) -> Error:
    """The error for a transaction that failed."""
    if "statement pooling" not in str(error):
        return unreachable(conn.info.dsn, error)
    return SetupError(
        f"the pooler is in statement mode, which allows no transactions ({str(error).strip()}):"
        " set pool_mode = transaction for dsn, and session for listen_dsn"
    )
