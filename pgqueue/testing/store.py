"""Tasks in memory, and their changes."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from .._calls.put_options import PutOptions
from .._engine.cancels import Watched
from .._values import data as json_data
from .._values.marked import written
from ..errors import KeyExists
from .records import Kept


class Store:
    """The tasks of a test, and its clock."""

    def __init__(self, now: datetime) -> None:
        self.now = now
        self.tasks: dict[int, Kept] = {}
        self.put_hook: Callable[[Kept], None] = lambda task: None
        self.steps: dict[tuple[int, str], str] = {}  # JSON text, by the task's id and the step's name
        self.watched: dict[int, list[Watched]] = {}  # of Task.cancelled, by the task's id
        self._last_id = 0
        self._recent: dict[tuple[str, str], tuple[Kept, datetime]] = {}  # the keys of unique_for, and until when

    def put(self, queue: str, data: Any, options: PutOptions) -> tuple[Kept, bool]:
        """The new task, or the one with the same key and True."""
        text = json_data.encode(data)
        key = options.key
        if key is None and (options.unique_data or options.unique_for is not None):
            key = _key_of(json_data.decode(text))
        if key is not None and (there := self.with_key(queue, key)) is not None:
            if options.if_exists == "error":
                raise KeyExists(f"queue {queue!r} has a task with the key {key!r}")
            return there, True
        self._last_id += 1
        # PutOptions has made seconds of durations; its types still allow a timedelta, here and below.
        due = options.run_at or self.now + timedelta(seconds=float(options.delay or 0))  # type: ignore[arg-type]
        task = Kept(
            id=self._last_id,
            queue=queue,
            data=json_data.decode(text),
            state="delayed" if due > self.now else "ready",
            run_at=due,
            priority=options.priority or 0,
            key=key,
            after=options.ids if options.waits else [],
            on_failure=options.on_failure or "wait",
        )
        self.tasks[task.id] = task
        if task.after:
            task.state = "waiting"
            self._open(task)
        if options.unique_for is not None:
            self._recent[queue, str(key)] = task, self.now + timedelta(seconds=float(options.unique_for))  # type: ignore[arg-type]
        return task, False

    def due(self) -> Kept | None:
        """The next task that can run now: the lowest (priority, id)."""
        for task in self.tasks.values():
            if task.state == "waiting":
                self._open(task)
        found = [task for task in self.tasks.values() if task.state in ("ready", "delayed") and task.run_at <= self.now]
        return min(found, key=lambda task: (task.priority, task.id), default=None)

    def settle(self, verb: str, given: dict[str, Any]) -> str:
        """Settle as a function of the database does. Returns the state."""
        task = self.tasks[given["id"]]
        if verb in ("finish", "fail"):
            task.kept = True
        if verb in ("ack", "finish"):
            task.state = "done"
            if verb == "finish":
                task.result = json_data.decode(given["result"])
            for put in json_data.decode(given.get("puts") or "[]"):
                queue, data = put.pop("queue"), put.pop("data")
                self.put_hook(self.put(queue, data, PutOptions(**put))[0])
        elif verb == "bury" or (verb == "fail" and given.get("delay") is None):
            task.state, task.error = "buried", given.get("error")
            task.attempts += verb == "fail" or given.get("token") is not None
        elif verb in ("release", "fail"):
            self._release(task, given)
        elif verb == "progress":
            task.progress = json_data.decode(given["value"])
        return task.state

    def cancel(self, id: int, reason: str | None) -> str | None:
        """Cancel a task. Returns its state; None if there is no such task."""
        task = self.tasks.get(id)
        if task is None:
            return None
        if task.state in ENDED:
            return ENDED[task.state]
        task.error = reason or "no reason was given"
        if task.state == "taken":  # by the handler that runs now
            task.cancelling = True
            for watched in self.watched.get(id, ()):
                watched.set(reason)
            return "cancelling"
        task.state = "cancelled"
        return "cancelled"

    def watch(self, id: int, token: int) -> Watched:
        """Watch a task for its cancellation."""
        self.watched.setdefault(id, []).append(watched := Watched(id, token))
        if self.tasks[id].cancelling:
            watched.set(self.tasks[id].error)
        return watched

    def _open(self, task: Kept) -> None:
        """Make a task that waits for others ready, once they have ended."""
        states = [self.tasks[id].state if id in self.tasks else "done" for id in task.after]
        if not all(state in ENDED for state in states):
            return
        failed = any(state != "done" for state in states)
        if not failed or task.on_failure == "run":
            task.state = "delayed" if task.run_at > self.now else "ready"
        elif task.on_failure == "bury":
            task.state, task.error = "buried", "a task before it has failed"

    def _release(self, task: Kept, given: dict[str, Any]) -> None:
        delay = float(given.get("delay") or 0)
        task.run_at = self.now + timedelta(seconds=delay)
        task.state = "delayed" if delay else "ready"
        if given.get("priority") is not None:
            task.priority = given["priority"]
        if given.get("error") is not None:
            task.error = given["error"]
            task.attempts += 1

    def with_key(self, queue: str, key: str) -> Kept | None:
        """The task that has a key."""
        recent, until = self._recent.get((queue, key), (None, self.now))
        if until > self.now:
            return recent
        alive = (task for task in self.tasks.values() if task.state not in ("done", "cancelled"))
        return next((task for task in alive if (task.queue, task.key) == (queue, key)), None)


def _key_of(data: Any) -> str:
    """As pgqueue.data_key: of a job's task the name and the arguments count."""
    if isinstance(data, dict) and "job" in data:
        data = {"job": data["job"], "args": data.get("args")}
    return json.dumps(data, sort_keys=True, default=written)


ENDED = {"done": "done", "buried": "failed", "cancelled": "cancelled"}  # states, and their names for cancel()
EPOCH = datetime(2030, 1, 1, tzinfo=UTC)  # of a test's clock
