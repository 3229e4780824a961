"""Why the tasks of a queue, or one task, are not done: the reasons in words, each with its remedy.

A remedy is a button, a command, or both. A command names the queue, role or limit, quoted for a shell.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, TypeVar

from .._calls.call import Call
from .._calls.rows import Row, rows
from .words import REASONS, Words

T = TypeVar("T")

COLUMNS = ("reason", "tasks", "detail", "subject")
LIMITS = (
    "job",
    "argument",
    "concurrency",
    "rate",
    "extract(epoch FROM per)::float AS per",
    "burst",
    "running",
    "waiting",
)
FULL_LIMITS = (
    "FROM pgqueue.limits WHERE queue OPERATOR(pg_catalog.=) %s::pg_catalog.text"
    " AND waiting OPERATOR(pg_catalog.>) 0 ORDER BY waiting DESC LIMIT 5"
)
WAITS_FOR_TASKS = "for other tasks"  # the detail of why() for tasks in a flow
FLOW = Words("It waits for other tasks.", "It is ready once they have ended: see its flow.")
FLOWS = Words(
    "Tasks wait for other tasks.",
    "They are ready once those have ended: the view `pgqueue.dependencies` names them.",
)
LIMITED = Words("A limit is reached.", "It begins once one of the tasks that run under this limit has ended.", "limits")
NO_ERROR = "without an error"  # the detail of why() for such buried tasks
PART = 200  # characters of an error by which a button chooses its tasks
MOST_CAPACITY = 2**31 - 1


class Read(Protocol):
    """Runs a call. `times`: for how much longer than usual its answer may be shared with others that ask the same."""

    async def __call__(self, call: Call[T], times: float = 1.0) -> T: ...


class Button(NamedTuple):
    """A remedy that a page carries out: an action of the dashboard, its arguments, and the button's text."""

    do: str
    given: dict[str, Any]
    label: str


async def of_queue(read: Read, queue: str, times: float = 1.0) -> list[dict[str, Any]]:
    """The reasons for a queue. `times`: as for Read. Its limits are read from their view, since the command that raises
    one needs all its numbers."""
    found = await read(rows(COLUMNS, "FROM pgqueue.why(queue => %s::pg_catalog.text)", queue), times)
    limits = await read(rows(LIMITS, FULL_LIMITS, queue), times)
    others = [row for row in found if row["reason"] != "waiting" or waits_for_tasks(row)]
    return [_explained(queue, row) for row in others] + [_of_limit(queue, limit) for limit in limits]


async def of_task(read: Read, id: int) -> list[dict[str, Any]]:
    """The reasons for a task."""
    found = await read(rows(COLUMNS, "FROM pgqueue.why(id => %s::bigint)", id))
    return [
        row | {"words": FLOW if waits_for_tasks(row) else LIMITED, "names": {}, "buttons": []}
        if row["reason"] == "waiting"
        else _explained("", row)
        for row in found
    ]


def waits_for_tasks(row: Row) -> bool:
    """Whether a reason is that tasks wait for others, and not for a limit."""
    return bool(row["reason"] == "waiting" and row["detail"] == WAITS_FOR_TASKS)


def _explained(queue: str, row: Row) -> dict[str, Any]:
    words = FLOWS if waits_for_tasks(row) else REASONS.get(row["reason"], Words(row["reason"].capitalize(), ""))
    names = {"queue": shlex.quote(queue), "subject": shlex.quote(row["subject"] or "")}
    buttons = BUTTONS[row["reason"]](queue, row) if queue and row["reason"] in BUTTONS else []
    return row | {"words": words, "names": names, "buttons": buttons}


def _of_limit(queue: str, limit: Row) -> dict[str, Any]:
    most = "" if limit["concurrency"] is None else f" of {limit['concurrency']}"
    of = "the queue" if not limit["job"] else f"job {limit['job']}"
    row = {"reason": "waiting", "tasks": limit["waiting"], "subject": limit["job"]}
    row["detail"] = f"{limit['running']}{most} run, by the limit of {of}"
    found = _explained(queue, row)
    return found | {"names": {"limit": raised(queue, limit)}, "buttons": []}


def raised(queue: str, limit: Row) -> str:
    """The command for a limit that is twice as high, and the same in all else."""
    words = ["pgqueue", "limit", "set", queue]
    words += ["--job", limit["job"]] if limit["job"] else []
    words += ["--concurrency", str(2 * limit["concurrency"])] if limit["concurrency"] is not None else []
    if limit["rate"] is not None:
        words += ["--rate", str(2 * limit["rate"]), "--per", f"{limit['per']:g}", "--burst", str(2 * limit["burst"])]
    words += ["--by", limit["argument"]] if limit["argument"] else []
    return shlex.join(words)


def _of_error(queue: str, row: Row, state: str, label: str) -> list[Button]:
    """Retry the tasks of a state with this error. Where the role may not see it, no button can choose them."""
    if row["subject"] is None or row["detail"] is None:
        return []
    error = {"no_error": "yes"} if row["detail"] == NO_ERROR else {"error": row["detail"][:PART]}
    return [Button("kick_all", {"queue": queue, "state": state, **error}, label)]


def _of_task(row: Row, *names: str) -> list[Button]:
    labels = {"cancel": "Cancel task", "set_aside": "Set aside task"}
    return [Button(name, {"id": row["subject"]}, f"{labels[name]} {row['subject']}") for name in names]


def _more(queue: str, row: Row) -> list[Button]:
    most = min(2 * int(row["subject"]), MOST_CAPACITY)
    return [Button("alter", {"queue": queue, "option": "capacity", "value": most}, f"Allow {most:,} tasks")]


#: The buttons of a reason for a queue.
BUTTONS: dict[str, Callable[[str, Row], list[Button]]] = {
    "paused": lambda queue, row: [Button("resume", {"queue": queue}, "Resume")],
    "draining": lambda queue, row: [Button("undrain", {"queue": queue}, "Accept puts")],
    "full": _more,
    "died": lambda queue, row: _of_task(row, "set_aside"),
    "blocked": lambda queue, row: _of_task(row, "cancel", "set_aside"),
    "failing": lambda queue, row: _of_error(queue, row, "delayed", "Run them now"),
    "buried": lambda queue, row: _of_error(queue, row, "buried", "Retry them"),
    "delayed": lambda queue, row: [Button("kick_all", {"queue": queue, "state": "delayed"}, "Run them now")],
    "scheduled": lambda queue, row: [Button("run_schedule", {"name": row["subject"]}, "Run now")],
}
