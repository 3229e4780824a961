"""The application of the rig: its tasks journal their runs, in lines that outlive a kill -9.

Celery's programs load it by `-A faults.celery.application`. Their surroundings say what it is:

    RIG_URL         the broker, and the result backend
    RIG_JOURNAL     the file for the runs of this program's tasks
    RIG_BEAT        the file for the runs of beat's task
    RIG_ACKS_LATE   1: messages are acked after the run, and given back if its process dies
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from celery import Celery, signals

from ..journal import Journal

RESULTS_LIVE = 60  # seconds

app = Celery("rig", broker=os.environ["RIG_URL"], backend=os.environ["RIG_URL"])
app.conf.update(
    task_acks_late=os.environ.get("RIG_ACKS_LATE") == "1",
    task_reject_on_worker_lost=os.environ.get("RIG_ACKS_LATE") == "1",
    result_expires=RESULTS_LIVE,
    broker_connection_retry_on_startup=True,
    broker_connection_max_retries=None,
    worker_cancel_long_running_tasks_on_connection_loss=False,
    beat_schedule={"tick": {"task": "rig.tick", "schedule": 1.0}},
    beat_max_loop_interval=1.0,
)
journal = Journal(Path(os.environ["RIG_JOURNAL"]))


def task(name: str, **options: Any) -> Callable[[Callable[..., Any]], Any]:
    """Celery's decorator, which has no types."""
    return app.task(name=name, **options)  # type: ignore[no-any-return]


@task("rig.note")
def note(label: str, seconds: float) -> str:
    """Take some time. The journal has the process of the run, and whether it came to its end."""
    journal.write("took", label, os.getpid())
    time.sleep(seconds)
    journal.write("handled", label, os.getpid())
    return label


@task("rig.gather")
def gather(labels: list[str]) -> int:
    """The body of a chord of notes."""
    return len(labels)


@task("rig.tick", ignore_result=True)
def tick() -> None:
    """Beat's task."""
    Journal(Path(os.environ["RIG_BEAT"])).write("handled", "tick")


def ready(**about: Any) -> None:
    journal.write("ready")


signals.worker_ready.connect(ready)
