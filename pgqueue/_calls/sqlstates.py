"""The errors of pgqueue for the errors of the database."""

from __future__ import annotations

import json

import psycopg

from ..errors import (
    BatchError,
    ClusterError,
    ConnectionLost,
    DataTooBig,
    ExchangeExists,
    KeyExists,
    KeyTaken,
    LimitElsewhere,
    LockBlocked,
    NoExchange,
    NoIdentity,
    NoQueue,
    NoSchedule,
    NotAllowed,
    NotRunning,
    QueueDraining,
    QueueExclusive,
    QueueExists,
    QueueFull,
    QueueInUse,
    QueueNotListed,
    QuotaReached,
    SchemaError,
    SessionDead,
    TaskElsewhere,
)

_MISUSE = {
    **dict.fromkeys(("PQ001", "PQ002", "PQ040", "PQ041", "PQ042", "PQ043", "PQ044"), ValueError),
    "PQ003": QueueExists,
    "PQ004": SessionDead,
    "PQ007": LockBlocked,
    "PQ006": QuotaReached,
    "PQ030": ExchangeExists,
    "PQ031": NoExchange,
    "PQ032": NoQueue,
    "PQ033": QueueExclusive,
    "PQ034": QueueInUse,
    "PQ035": QueueDraining,
    "PQ036": DataTooBig,
    "PQ037": QueueFull,
    "PQ038": KeyExists,
    "PQ039": KeyTaken,
    **dict.fromkeys(("PQ045", "PQ046"), BatchError),
    "PQ048": SchemaError,
    "PQ049": ClusterError,
    "PQ060": QueueNotListed,
    "PQ070": NoIdentity,
    "PQ080": NoSchedule,
}
_ELSEWHERE = "PQ047"  # its message begins: task 42 belongs to
_KEPT = "PQ050"  # its message begins: server 2 keeps
_DENIED = "42501"  # insufficient_privilege: PostgreSQL's for a function, ours for a queue
_READ_ONLY = "25006"  # read_only_sql_transaction
_UNSUPPORTED = "0A000"  # a standby has no UNLOGGED tables; the code has many other causes
_UNDEFINED = "42704"  # undefined_object, which has many causes
_OF_A_ROLE = {"get_role_oid", "regrolein"}  # until PostgreSQL 15, and since 16
_UNTRANSLATABLE = "22P05"  # untranslatable_character
_TOO_LARGE = "54000"  # program_limit_exceeded
_GRANTS = "The owner of the schema gives rights: SELECT pgqueue.grant_to(role, verbs)"
#: Of a server that ends the connection: it stops, crashed, starts, or met a timeout that an administrator has set.
_GONE = {"57P01", "57P02", "57P03", "57P05", "25P03"}
_BROKEN = "08"  # the class of connection exceptions
_NO_SCHEMA = {"3F000", "42883", "42P01"}  # invalid_schema_name, undefined_function, undefined_table


def translate(error: psycopg.Error, *, lost: bool) -> Exception:
    """The error to raise for an error of psycopg. `lost`: the connection is broken."""
    message = error.diag.message_primary or str(error)
    diag = error.diag
    hint, detail = diag.message_hint, diag.message_detail
    return known(error.sqlstate, message, diag.source_function, lost=lost, hint=hint, detail=detail) or error


def known(
    sqlstate: str | None,
    message: str,
    source_function: str | None,
    *,
    lost: bool,
    hint: str | None = None,
    detail: str | None = None,
) -> Exception | None:
    """The pgqueue error for an error of any driver, or None.

    Args:
        sqlstate: the server's SQLSTATE; None if the error is not from the server.
        message: the primary message.
        source_function: the function of the server's source in which the error arose.
        lost: the connection is broken.
        hint, detail: the server's.
    """
    state = sqlstate or ""
    if state in _MISUSE:
        return _MISUSE[state](message)
    if state == _ELSEWHERE:
        return TaskElsewhere(message, int(message.split()[1]))
    if state == _KEPT:
        task = json.loads(detail or "{}")
        return LimitElsewhere(message, int(message.split()[1]), task.get("queue", ""), task.get("job"))
    if state == _DENIED:
        return NotAllowed(message, hint or _GRANTS)
    if state == _UNDEFINED and source_function in _OF_A_ROLE:
        return ValueError(message)
    if state == _UNTRANSLATABLE:
        return ValueError(f"the encoding of this database lacks a character: {message}")
    if state == _TOO_LARGE and "jsonb" in message:
        return DataTooBig(f"PostgreSQL cannot hold data of this size: {message}")
    if state in _NO_SCHEMA and "pgqueue" in message:
        return SchemaError(f"this database lacks a part of the pgqueue schema ({message}): run `pgqueue migrate up`")
    if state == _READ_ONLY or (state == _UNSUPPORTED and source_function == "get_relation_info"):
        return NotRunning(f"queues do not work here ({message}): it is a standby, or read-only")
    if lost or state in _GONE or state.startswith(_BROKEN):
        return ConnectionLost(f"the connection to PostgreSQL broke during the call: {message}")
    return None
