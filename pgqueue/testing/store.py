"""Tasks in memory, and their changes."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from .._calls.put_options import PutOptions
from .._engine.cancels import Watched
from .._values import data as json_data
from .._values.arguments import Seconds
from .._values.marked import written
from ..errors import KeyExists, KeyTaken
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
        self._waits: dict[int, float | None] = {}  # the tasks that wait for others, by their ids, and their delays

    def put(self, queue: str, data: Any, options: PutOptions) -> tuple[Kept, bool]:
        """The new task, or the one with the same key and True."""
        text = json_data.encode(data)
        key = options.key
        if key is None and (options.unique_data or options.unique_for is not None):
            key = _key_of(json_data.decode(text))
        if key is not None and (there := self._met(queue, key, options)) is not None:
            if options.if_exists == "error":
                raise KeyExists(f"queue {queue!r} has a task with the key {key!r}")
            if options.if_exists == "replace":
                self._replace(there, json_data.decode(text), options)
            return there, True
        self._last_id += 1
        due = self._due_of(options)
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
            task.state, self._waits[task.id] = "waiting", _seconds(options.delay)
            self._decide(task)
        if options.unique_for is not None:
            self._recent[queue, str(key)] = task, self.now + timedelta(seconds=_seconds(options.unique_for) or 0)
        self.put_hook(task)
        return task, False

    def due(self) -> Kept | None:
        """The next task that can run now: the lowest (priority, id)."""
        self.decide()
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
                self.put(queue, data, PutOptions(**put))
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

    def decide(self) -> None:
        """Look at the tasks that wait for others, as the next tick does."""
        for id in list(self._waits):
            self._decide(self.tasks[id])

    def _decide(self, task: Kept) -> None:
        """Bury a task that waits for others, or open it, as _decide() in SQL does."""
        if task.state == "delayed" and task.run_at > self.now:  # a put with a delay has replaced it
            return
        if task.state not in WAITING:
            del self._waits[task.id]
            return
        states = {id: self.tasks[id].state if id in self.tasks else "done" for id in task.after}
        gone = [id for id, state in states.items() if state == "cancelled"]
        failed = [id for id, state in states.items() if state == "buried"]
        if task.on_failure != "run" and (gone or (failed and task.on_failure == "bury")):
            how = "is gone and was not done" if gone else "failed"
            task.state, task.error = "buried", f"task {(gone or failed)[0]}, for which this task waited, {how}"
            del self._waits[task.id]
        elif all(state in ENDED for state in states.values()) and (task.on_failure == "run" or not failed):
            self._open(task)
        else:
            task.state = "waiting"

    def _open(self, task: Kept) -> None:
        """Make a task that waits for nothing any more ready, or delayed: its delay begins now."""
        if (delay := self._waits.pop(task.id)) is not None:
            task.run_at = self.now + timedelta(seconds=delay)
        task.state = "delayed" if task.run_at > self.now else "ready"

    def _replace(self, task: Kept, data: Any, options: PutOptions) -> None:
        """As _put_over() in SQL: the task keeps its id, its key, and the tasks that it waits for."""
        if task.state == "taken":
            raise KeyTaken(
                f"task {task.id} of queue {task.queue!r} has the key {task.key!r} and is taken: it cannot be replaced"
            )
        task.data, task.priority, task.run_at = data, options.priority or 0, self._due_of(options)
        task.attempts, task.error, task.result, task.kept = 0, None, None, False
        task.state = "delayed" if task.run_at > self.now else "waiting" if task.id in self._waits else "ready"
        self.put_hook(task)

    def _due_of(self, options: PutOptions) -> datetime:
        """When a put's task is due. The delay of one that waits for others begins when they have ended."""
        delay = None if options.waits else _seconds(options.delay)
        return options.run_at or self.now + timedelta(seconds=delay or 0)

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
        """The task that has a key, and has not ended."""
        alive = (task for task in self.tasks.values() if task.state not in OVER)
        return next((task for task in alive if (task.queue, task.key) == (queue, key)), None)

    def _met(self, queue: str, key: str, options: PutOptions) -> Kept | None:
        """The task because of which a put adds none: the one that has the key, or that had it within unique_for."""
        recent, until = self._recent.get((queue, key), (None, self.now))
        if options.unique_for is not None and until > self.now:
            return recent
        return self.with_key(queue, key)


def seen(task: Kept) -> tuple[str, Any]:
    """The state and the data of a task that a put has met: of one that has ended the database knows no more."""
    return ("unknown", None) if task.state in OVER else (task.state, task.data)


def _seconds(given: Seconds | None) -> float | None:
    """PutOptions has made seconds of durations; its types still allow a timedelta."""
    return None if given is None else float(given)  # type: ignore[arg-type]


def _key_of(data: Any) -> str:
    """As pgqueue.data_key: of a job's task the name and the arguments count."""
    if isinstance(data, dict) and "job" in data:
        data = {"job": data["job"], "args": data.get("args")}
    return json.dumps(data, sort_keys=True, default=written)


WAITING = ("waiting", "delayed")  # states of tasks that may wait for others
OVER = ("done", "cancelled")  # states in which a task has no key any more
ENDED = {"done": "done", "buried": "failed", "cancelled": "cancelled"}  # states, and their names for cancel()
EPOCH = datetime(2030, 1, 1, tzinfo=UTC)  # of a test's clock
