"""Calls of statuses, results and progress: sql/4_families/statuses.sql."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from .. import arguments, data
from . import Call, Fence, Named, Refused, Rows, _columns, _nothing, _refused, _settled, _text

ENDED = frozenset(("done", "failed", "unknown"))


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskStatus:
    """What is known of a task at a moment, also after its end.

    Attributes:
        id: the task's.
        state: as a task's while it lives: ready, delayed, taken, buried. After its end `done` or `failed`, if that was
            kept, and otherwise `unknown`, as for a task that never was.
        queue: the queue's name; None if the state is unknown.
        attempts: how often it came back.
        error: what the last failed attempt said; of a task that failed, the one that ended it.
        holder: host, process id and program of whoever has it taken.
        progress: what its holder has reported, if anything.
        result: what it came to, if it is done.
        updated_at: when it was put, taken, last reported progress, or ended: the latest of these that is known.
    """

    id: int
    state: str
    queue: str | None = None
    attempts: int = 0
    error: str | None = None
    holder: str | None = None
    progress: Any = None
    result: Any = None
    updated_at: datetime | None = None

    @property
    def ended(self) -> bool:
        """Whether nothing more will happen to it: it is done, failed or unknown."""
        return self.state in ENDED


# --- by key


def set_status(key: str, text: str, ttl: float | None) -> Call[None]:
    if text == "null":
        raise ValueError("a status cannot be None, which get_status returns for a key without one: see delete_status")
    return Call(
        "SELECT pgqueue.set_status(key => %s::text, value => %s::jsonb, ttl => make_interval(secs => %s::float8))",
        (_key(key), text, arguments.seconds("ttl", ttl, positive=True)),
        _nothing,
    )


def get_status(key: str) -> Call[Any]:
    return Call("SELECT pgqueue.get_status(key => %s::text)::text", (_key(key),), lambda rows: _decoded(rows[0][0]))


def delete_status(key: str) -> Call[bool]:
    return Call("SELECT pgqueue.delete_status(key => %s::text)", (_key(key),), lambda rows: bool(rows[0][0]))


def status_channel(key: str) -> str:
    """The channel on which set_status notifies."""
    return f"pgqueue:status:{hashlib.md5(_key(key).encode(), usedforsecurity=False).hexdigest()}"


# --- of a task


def task_status(id: int) -> Call[TaskStatus]:
    def read(rows: Rows) -> TaskStatus:
        state, queue, attempts, error, holder, progress, result, updated_at = rows[0]
        return TaskStatus(
            id=id,
            state=state,
            queue=queue,
            attempts=attempts or 0,
            error=error,
            holder=holder,
            progress=_decoded(progress),
            result=_decoded(result),
            updated_at=updated_at,
        )

    return Call(
        "SELECT state, queue, attempts, error, holder, progress::text, result::text, updated_at"
        " FROM pgqueue.task_status(id => %s::int8)",
        (id,),
        read,
    )


def task_channel(id: int) -> str:
    """The channel on which results and progress of a task are announced."""
    return f"pgqueue:task:{id}"


def finish(id: int, fence: Fence, text: str, keep: float) -> Call[str]:
    return Call(
        "SELECT state, problem, holder FROM pgqueue.finish(id => %s::int8, token => %s::int8, session => %s::int,"
        " result => %s::jsonb, keep => make_interval(secs => %s::float8))",
        (id, fence.token, fence.session, text, _keep(keep)),
        _settled(id, fence),
    )


def finish_many(tasks: Named, texts: Sequence[str], fence: Fence, keep: float) -> Call[list[Refused]]:
    return Call(
        "SELECT id, state, problem, holder"
        " FROM pgqueue.finish_many(ids => %s::int8[], tokens => %s::int8[], session => %s::int,"
        " results => %s::jsonb, keep => make_interval(secs => %s::float8))",
        (*_columns(tasks), fence.session, f"[{','.join(texts)}]", _keep(keep)),
        _refused,
    )


def fail(id: int, fence: Fence, error: str | None, keep: float, delay: float | None = None) -> Call[str]:
    """With a delay it is tried again, and fails only if the queue allows no more attempts."""
    return Call(
        "SELECT state, problem, holder FROM pgqueue.fail(id => %s::int8, token => %s::int8, error => %s::text,"
        " keep => make_interval(secs => %s::float8), delay => make_interval(secs => %s::float8))",
        (id, fence.token, _text(error), _keep(keep), delay),
        _settled(id, fence),
    )


def progress(id: int, fence: Fence, text: str) -> Call[str]:
    return Call(
        "SELECT state, problem, holder FROM pgqueue.progress(id => %s::int8, token => %s::int8, session => %s::int,"
        " value => %s::jsonb)",
        (id, fence.token, fence.session, text),
        _settled(id, fence),
    )


def _key(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"a status key is a string, not {value!r}")
    if not 1 <= len(value) <= 200:
        raise ValueError(f"a status key has 1 to 200 characters, this one has {len(value)}: take its md5, for example")
    return arguments.text(value, "a status key")


def _keep(value: float) -> float:
    seconds = arguments.seconds("keep", value, positive=True)
    if seconds is None:
        raise ValueError("keep must be a number of seconds, not None: without a result to keep, ack or bury")
    return seconds


def _decoded(text: str | None) -> Any:
    return None if text is None else data.decode(text)
