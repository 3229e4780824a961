"""Changes of the table of a cluster's servers, copied to all of them as the commands do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import psycopg

from pgqueue._calls import servers as calls


def change(conns: Sequence[psycopg.Connection], call: str, *args: Any) -> None:
    """Change the table on the first server, and copy it to all of them."""
    home, *others = conns
    home.execute(f"SELECT pgqueue.{call}({', '.join(['%s'] * len(args))})", args)
    for conn in others:
        copy(home, conn)


def copy(home: psycopg.Connection, conn: psycopg.Connection) -> None:
    made = calls.servers()
    table = made.read(home.execute(made.sql, made.args).fetchall())
    assert table is not None
    copying = calls.copy(table)
    conn.execute(copying.sql, copying.args)
