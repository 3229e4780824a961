"""A task: its data, attempts, holder, progress, result and steps, and the graph of its flow."""

from __future__ import annotations

from typing import Any

from ..._calls import attempts as attempt_calls
from ..._calls import results as outcomes
from ..._calls.results import Outcome
from ..._calls.rows import Row, rows
from ..._values import data
from ...errors import NotAllowed, TaskNotFound
from ...monitors import reasons
from .. import drawing
from .tasks import COLUMNS, SHORT
from .visit import Page, Visit

DETAILS = (
    *COLUMNS,
    "t.deaths::pg_catalog.text AS deaths",
    "extract(epoch FROM t.ttr)::float AS ttr",
    "t.expires_at",
    "t.ready_since",
    "t.releases",
    "t.timeouts",
    "t.buries",
    "t.kicks",
    "t.routing_key",
    "t.data IS NULL AS hidden",
)
BY_ID = "FROM pgqueue.tasks t WHERE t.id OPERATOR(pg_catalog.=) %s::bigint"
STEPS = ("step", "value::pg_catalog.text AS text", "recorded_at")
OF_TASK = "FROM pgqueue.steps WHERE id OPERATOR(pg_catalog.=) %s::bigint ORDER BY recorded_at, step LIMIT 200"
EDGES = ("id", "queue", "on_id", "state", "on_failure")
AROUND = (
    "FROM pgqueue.dependencies WHERE id OPERATOR(pg_catalog.=) ANY (%s::bigint[])"
    " OR on_id OPERATOR(pg_catalog.=) ANY (%s::bigint[]) ORDER BY id, on_id LIMIT 200"
)
NEIGHBOURS = ("shares", "task", "state", "priority", "holder", "taken_at")
START = 2000  # characters of long data that the page shows
LONG_SHARED = 10.0  # times as long as other answers they are shared: the server decompresses all of the data
ROUNDS = 3  # how far the graph of a flow extends from its task
NODES = 40  # tasks of a graph


async def read(visit: Visit) -> dict[str, Any]:
    id = visit.asked.id()
    found = await visit.read(rows(DETAILS, BY_ID, id))
    outcome = await _outcome(visit, id)
    if not found and outcome.state == "unknown":
        raise TaskNotFound(f"task {id} is gone: it was done, deleted, or never committed", id)
    task = found[0] if found else None
    queue = task["queue"] if task else outcome.queue or ""
    too_long = bool(task and task["text"] is None and not task["hidden"])
    steps = await visit.read(rows(STEPS, OF_TASK, id))
    return {
        "title": f"Task {id}",
        "id": id,
        "task": task,
        "outcome": outcome,
        "queue": queue,
        "data": visit.shown(queue, data.shown(task["text"])) if task and task["text"] is not None else None,
        "too_long": too_long,
        "start": await _start(visit, id) if too_long else None,
        "progress": visit.shown(queue, outcome.progress),
        "result": visit.shown(queue, outcome.result),
        "attempts": await visit.read(attempt_calls.attempts(id)),
        "steps": [row | {"value": visit.shown(queue, data.shown(row["text"]))} for row in steps if row["text"]],
        "reasons_found": await reasons.of_task(visit.read, id) if task else [],
        "job": _job(task["text"]) if task and task["text"] is not None else None,
        "neighbours": await visit.read(rows(NEIGHBOURS, "FROM pgqueue.neighbours(id => %s::bigint)", id)),
        "graph": drawing.graph(id, *await _graph(visit, id)),
        "short": SHORT,
    }


async def _start(visit: Visit, id: int) -> str | None:
    """The beginning of long data; None where a part of it cannot be shown, since the application masks data."""
    if visit.settings.show_data is not None:
        return None
    column = f"pg_catalog.left(data::pg_catalog.text, {START}) AS start"
    found = await visit.read(rows((column,), BY_ID, id), LONG_SHARED)
    return found[0]["start"] if found else None


def _job(text: str) -> str | None:
    """The name of the job in the data of a task."""
    found = data.shown(text)
    name = found.get("job") if isinstance(found, dict) else None
    return name if isinstance(name, str) else None


async def _outcome(visit: Visit, id: int) -> Outcome:
    """The outcome of a task; an unknown one for a role that may only monitor."""
    try:
        return await visit.read(outcomes.outcome(id))
    except NotAllowed:
        return Outcome(id=id, state="unknown")


async def _graph(visit: Visit, id: int) -> tuple[dict[int, str], list[tuple[int, int]]]:
    """The tasks around one, by id with their states, and which of them waits for which."""
    known: dict[int, Row] = {}
    edges: set[tuple[int, int]] = set()
    around, asked = {id}, set[int]()
    for _ in range(ROUNDS):
        if not (fresh := sorted(around - asked)[:NODES]):
            break
        asked.update(fresh)
        for edge in await visit.read(rows(EDGES, AROUND, fresh, fresh)):
            if len(around) < NODES or {edge["id"], edge["on_id"]} <= around:
                around |= {edge["id"], edge["on_id"]}
                edges.add((edge["on_id"], edge["id"]))
                known[edge["on_id"]] = edge
    if not edges:
        return {}, []
    states = await visit.read(
        rows(("id", "state"), "FROM pgqueue.tasks WHERE id OPERATOR(pg_catalog.=) ANY (%s::bigint[])", sorted(around))
    )
    found = {row["id"]: row["state"] for row in states}
    return {one: found.get(one) or (known[one]["state"] if one in known else "done") for one in around}, sorted(edges)


async def whole_data(visit: Visit) -> str:
    """All data of a task, as JSON text. Raises TaskNotFound."""
    id = visit.asked.id()
    found = await visit.read(rows(("queue", "data::pg_catalog.text AS text"), BY_ID, id))
    if not found or found[0]["text"] is None:
        raise TaskNotFound(f"task {id} is gone, or its data is not for the role of this dashboard", id)
    value = data.shown(found[0]["text"])
    shown = visit.shown(found[0]["queue"], value)
    return str(found[0]["text"]) if shown is value else str(data.encode(shown) if shown is not None else "null")


PAGE = Page("task", "Task", "task.html", read)
