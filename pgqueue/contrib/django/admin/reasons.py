"""The reasons why a task, or the tasks of a queue, are not done, from pgqueue.why()."""

from __future__ import annotations

from typing import Any

from django.db import connections
from django.utils.safestring import SafeString

from pgqueue._engine import borrowed

from ...._calls.call import Call
from ..models import Queue, Task
from . import showing


def why(row: Queue | Task) -> SafeString | str:
    """The reasons, one a line."""
    call = _of_queue(row.name) if isinstance(row, Queue) else _of_task(row.id)
    found = borrowed.run(connections[str(row._state.db)], call)
    rows = [(reason, f" ({tasks:,})" if tasks else "", showing.last_line(text, 200)) for reason, tasks, text in found]
    return showing.lines("<b>{}{}</b>: {}", rows)


def _of_queue(name: str) -> Call[list[Any]]:
    return Call("SELECT reason, tasks, detail FROM pgqueue.why(queue => %s::pg_catalog.text)", (name,), list)


def _of_task(id: int) -> Call[list[Any]]:
    return Call("SELECT reason, tasks, detail FROM pgqueue.why(id => %s::bigint)", (id,), list)
