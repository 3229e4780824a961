"""The reasons why a task, or the tasks of a queue, are not done, from pgqueue.why()."""

from __future__ import annotations

from typing import Any

from django.db import connections
from django.utils.safestring import SafeString

from pgqueue._engine import borrowed

from ...._calls.call import Call, call
from ..models import Queue, Task
from . import showing


def why(row: Queue | Task) -> SafeString | str:
    """The reasons, one a line."""
    about = {"queue": row.name} if isinstance(row, Queue) else {"id": row.id}
    found = borrowed.run(connections[str(row._state.db)], _why(about))
    rows = [(reason, f" ({tasks:,})" if tasks else "", showing.last_line(text, 200)) for reason, tasks, text in found]
    return showing.lines("<b>{}{}</b>: {}", rows)


def _why(about: dict[str, Any]) -> Call[list[Any]]:
    return call("why", "reason, tasks, detail", list, **about)
