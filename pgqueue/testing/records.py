"""The records of tasks for a test."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

State = Literal["ready", "delayed", "waiting", "taken", "done", "buried", "cancelled"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """One run of a task.

    Attributes:
        id: the task's id.
        queue: the queue's name.
        job: the name of the job; None for a plain handler.
        state: the task's state after it: done, buried, delayed or ready.
        error: why it failed.
        exception: the handler's exception.
        delay: seconds until the next attempt, if there is one.
    """

    id: int
    queue: str
    job: str | None
    state: State
    error: str | None = None
    exception: BaseException | None = None
    delay: float | None = None


@dataclass(slots=True, kw_only=True)
class Kept:
    """A task in memory.

    Attributes:
        id: in the order of the puts, from 1.
        data: as it would be in the database: `{"job": ..., "args": {...}}`.
        state: ready, delayed, waiting (for the tasks of `after`), taken, done, buried or cancelled.
        run_at: when it is or was due.
        attempts: how often it has failed.
        error: of the last failed attempt.
        result: as JSON values, of a job with keep_result.
        kept: whether result() finds its outcome.
        progress: its handler's last report.
        cancelling: it was cancelled while its handler ran.
        after: the ids of the tasks that must have ended first.
        on_failure: its action if one of those has failed.
        history: its attempts.
    """

    id: int
    queue: str
    data: Any
    state: State
    run_at: datetime
    priority: int = 0
    key: str | None = None
    attempts: int = 0
    error: str | None = None
    result: Any = None
    kept: bool = False
    progress: Any = None
    cancelling: bool = False
    after: list[int] = field(default_factory=list)
    on_failure: str = "wait"
    history: list[Ran] = field(default_factory=list)

    @property
    def job(self) -> str:
        """The name of the job; empty if it is none's."""
        return str(self.data.get("job", "")) if isinstance(self.data, dict) else ""

    @property
    def args(self) -> dict[str, Any]:
        """As JSON values."""
        found: dict[str, Any] = self.data.get("args", {})
        return found
