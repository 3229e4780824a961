"""Short ways to run one statement on an autocommit connection, and to see which notifications came."""

from __future__ import annotations

import itertools
import json
import re
import uuid
from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

import psycopg

from pgqueue._calls.call import Call

PUT = "SELECT id FROM pgqueue.put(%s, to_jsonb(%s::text))"


def rows(conn: psycopg.Connection, query: str, *args: Any) -> list[tuple[Any, ...]]:
    return conn.execute(query, args).fetchall()


def row(conn: psycopg.Connection, query: str, *args: Any) -> tuple[Any, ...] | None:
    (found,) = rows(conn, query, *args) or [None]
    return found


#: What planned() has prepared, by connection and statement.
_planned: WeakKeyDictionary[psycopg.Connection, dict[str, str]] = WeakKeyDictionary()


def planned(conn: psycopg.Connection, statement: str, args: Sequence[Any] = ()) -> list[Any]:
    """The rows of a statement. The server plans it once, which takes longer than to execute it.

    A rollback leaves the plan. psycopg discards all that was prepared at each rollback, unless it prepares nothing
    itself (prepare_threshold=None).
    """
    assert conn.prepare_threshold is None
    names = _planned.setdefault(conn, {})
    if statement not in names:
        numbers = itertools.count(1)
        text = re.sub("%s", lambda _: f"${next(numbers)}", statement).replace("%%", "%")
        name = f"planned_{len(names)}"
        conn.execute(f"PREPARE {name} AS {text}")
        names[statement] = name  # only now: it may have failed
    given = f" ({', '.join(['%s'] * len(args))})" if args else ""
    return psycopg.ClientCursor(conn).execute(f"EXECUTE {names[statement]}{given}", args).fetchall()


def pass_time(conn: psycopg.Connection, interval: str) -> None:
    """As if so much time had passed for each task: its time to run, its delay and its time to live."""
    conn.execute("UPDATE pgqueue.take SET deadline = deadline - %s::interval", [interval])
    conn.execute(
        "UPDATE pgqueue.task SET run_at = run_at - %s::interval, expires_at = expires_at - %s::interval", [interval] * 2
    )


def column(conn: psycopg.Connection, query: str, *args: Any) -> list[Any]:
    return [found[0] for found in rows(conn, query, *args)]


def value(conn: psycopg.Connection, query: str, *args: Any) -> Any:
    (found,) = rows(conn, query, *args)
    return found[0]


def put(conn: psycopg.Connection, queue: str, data: str = "data", **options: Any) -> int:
    """Put a string; options as SQL has them, an interval being a string."""
    names = "".join(f", {name} => %s" for name in options)
    return int(
        value(conn, f"SELECT id FROM pgqueue.put(%s, to_jsonb(%s::text){names})", queue, data, *options.values())
    )


def take(conn: psycopg.Connection, queue: str) -> tuple[int, int]:
    """The next task's id and token. There must be one."""
    id, token = rows(conn, "SELECT id, token FROM pgqueue.take(%s)", queue)[0]
    return id, token


def state(conn: psycopg.Connection, id: int) -> str | None:
    """The state of a task, None if it is gone."""
    found = row(conn, "SELECT state FROM pgqueue.tasks WHERE id = %s", id)
    return None if found is None else str(found[0])


def settled_by(call: Call[Any]) -> Any:
    """The id that a call of the library settles; a list of them if it is a call for many."""
    first = call.args[0]
    if isinstance(first, str) and first.startswith("["):
        return [row["id"] for row in json.loads(first)]
    return [int(id) for id in first.strip("{}").split(",")] if isinstance(first, str) else first


def everything(conn: psycopg.Connection, id: int) -> list[tuple[Any, ...]]:
    """All that is stored of a task and its take: equal before and after, nothing was changed."""
    query = "SELECT t::text, t.ctid, k::text, k.ctid FROM pgqueue.task t LEFT JOIN pgqueue.take k ON task_id = id"
    return rows(conn, f"{query} WHERE id = %s", id)


def notifications(listener: psycopg.Connection, sender: psycopg.Connection) -> list[str]:
    """The channels on which `listener` was notified so far.

    No silence has to be waited for: a marker sent now arrives after everything that was committed before.
    """
    marker = f"marker-{uuid.uuid4().hex}"
    listener.execute(f'LISTEN "{marker}"')
    sender.execute("SELECT pg_notify(%s, '')", [marker])
    channels = []
    for note in listener.notifies(timeout=10):
        if note.channel == marker:
            return channels
        channels.append(note.channel)
    raise AssertionError("the marker did not arrive")
