"""An application of Celery whose task writes what it did into a table.

`celery -A celery_tasks worker` runs it on the broker CELERY_BROKER, with results in CELERY_BACKEND if that is set. The
table is in the database PGQUEUE_DSN.
"""

from __future__ import annotations

import os
import time

import psycopg
from celery import Celery


def application(broker: str, backend: str | None = None) -> Celery:
    app = Celery("celery_tasks", broker=broker, backend=backend, set_as_current=False)
    app.conf.beat_schedule = {"often": {"task": "shop.note", "schedule": 0.5, "args": ["by beat"]}}
    app.conf.worker_prefetch_multiplier = 4
    app.conf.broker_connection_retry_on_startup = True

    @app.task(acks_late=True, name="shop.note", shared=False)
    def note(text: str, seconds: float = 0.0) -> None:
        time.sleep(seconds)
        with psycopg.connect(os.environ["PGQUEUE_DSN"], autocommit=True) as conn:
            conn.execute("INSERT INTO noted VALUES (%s, %s)", (text, os.getpid()))

    return app


app = application(os.environ.get("CELERY_BROKER", "memory://"), os.environ.get("CELERY_BACKEND"))
