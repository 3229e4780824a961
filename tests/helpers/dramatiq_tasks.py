"""An application of Dramatiq whose actor writes what it did into a table.

`dramatiq dramatiq_tasks:broker` runs it on the database PGQUEUE_DSN.
"""

from __future__ import annotations

import os
import time

import dramatiq
import psycopg

from pgqueue.contrib.dramatiq import PgqueueBroker


def application(dsn: str | None) -> tuple[PgqueueBroker, dramatiq.Actor]:
    broker = PgqueueBroker(url=dsn)

    @dramatiq.actor(broker=broker, actor_name="shop.note")
    def note(text: str, seconds: float = 0.0) -> None:
        time.sleep(seconds)
        with psycopg.connect(os.environ["PGQUEUE_DSN"], autocommit=True) as conn:
            conn.execute("INSERT INTO noted VALUES (%s, %s)", (text, os.getpid()))

    return broker, note


broker, note = application(os.environ.get("PGQUEUE_DSN"))
