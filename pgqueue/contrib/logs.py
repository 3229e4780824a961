"""Log records with the fields of their task.

    handler = logging.StreamHandler()
    handler.addFilter(TaskFilter())
    handler.setFormatter(JsonFormatter())

TaskFilter gives each record that a handler of a worker logs the attributes `job`, `task`, `attempt`, `queue` and
`worker`; other records get None. A filter of a logging.Handler sees the records of all loggers, a filter of a logger
only its own.

The task is that of the code that logs: a thread of the worker, a coroutine, the asyncio tasks that it starts, and
asyncio.to_thread. Records of a thread that a handler starts otherwise have it only if the thread gets the context:
`threading.Thread(target=contextvars.copy_context().run, args=(function,))`, or `pool.submit(copy_context().run,
function)`. Records of a handler in a process of its own are logged by the worker, with these attributes.
"""

from __future__ import annotations

import json
import logging
from typing import Any

from ..worker import runs

#: The fields that TaskFilter adds to a record.
FIELDS = ("job", "task", "attempt", "queue", "worker")

_USUAL = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class TaskFilter(logging.Filter):
    """Adds `job`, `task` (the id), `attempt` (from 1), `queue` and `worker` to each record; lets all of them pass.

    Args:
        worker: the name of this worker; default its label, host, process id and program.
    """

    def __init__(self, worker: str | None = None) -> None:
        super().__init__()
        self._worker = worker

    def filter(self, record: logging.LogRecord) -> bool:
        """Add the attributes, each of which the record does not have already. Returns True."""
        found = current()
        if self._worker is not None and found["task"] is not None:
            found["worker"] = self._worker
        for name, value in found.items():
            record.__dict__.setdefault(name, value)
        return True


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, logger, message, the fields of TaskFilter, `extra`, and the traceback."""

    default_time_format = "%Y-%m-%dT%H:%M:%S"
    default_msec_format = "%s.%03d"

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": self.formatTime(record),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= {name: value for name, value in vars(record).items() if name not in _USUAL and value is not None}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        if record.stack_info:
            line["stack"] = self.formatStack(record.stack_info)
        return json.dumps(line, default=str)


def current() -> dict[str, Any]:
    """The task that this code handles: `job`, `task`, `attempt`, `queue`, `worker`; each None outside of a handler."""
    run = runs.current.get()
    if run is None:
        return dict.fromkeys(FIELDS)
    task, is_batch = run.task, run.one_of_many
    return {
        "job": run.job or None,
        "task": None if is_batch else task.id,
        "attempt": None if is_batch else task.attempts + 1,
        "queue": task.queue,
        "worker": run.pool.runs.label or None,
    }
