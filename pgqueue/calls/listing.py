"""Tasks of a queue, page by page, whatever the backlog: by sql/3_tasks/pick.sql's find_tasks."""

from __future__ import annotations

from typing import Literal, get_args

from . import Call, Found

State = Literal["taken", "ready", "delayed", "blocked", "buried", "done"]


def tasks(queue: str, state: State | None, n: int, skip: int) -> Call[list[Found]]:
    """In the order of the state; without one, those of each state in turn."""
    states = list(get_args(State)) if state is None else [state]
    return Call(
        "SELECT t.id, t.queue, t.state, t.priority, t.attempts, t.error, t.run_at, t.deadline, t.holder, t.lane, t.key,"
        " t.data::text FROM unnest(%s::text[]) WITH ORDINALITY asked(state, place)"
        " CROSS JOIN LATERAL pgqueue.find_tasks(queue => %s::text, state => asked.state, n => %s::int)"
        " WITH ORDINALITY t ORDER BY asked.place, t.ordinality LIMIT %s::int OFFSET %s::int",
        (states, queue, n + skip, n, skip),
        lambda rows: [Found(*row) for row in rows],
    )
