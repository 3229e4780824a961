"""Tasks in memory, and the shells through which a handler settles its own task there.

A shell gets the call that would go to the database, reads the function and its arguments from the statement, and does
the same to a task in memory. So handlers under test use the real Task with its real verbs.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from .._async.task import AsyncTask
from .._calls.call import Call, Fence
from .._calls.put import PutManyOptions, PutOptions
from .._records.puts import Put, as_json
from .._records.task import bind
from .._sync.task import Task
from .._values import data as json_data
from ..errors import KeyExists
from .records import Kept

T = TypeVar("T")

_FUNCTION = re.compile(r"pgqueue\.(\w+)\(")
_ARGUMENT = re.compile(r"(\w+) => (?:pg_catalog\.\w+\((?:\w+ => )?)?%s")


class Store:
    """The tasks of a test, and its clock."""

    def __init__(self, now: datetime) -> None:
        self.now = now
        self.tasks: dict[int, Kept] = {}
        self.put_hook: Callable[[Kept], None] = lambda task: None
        self._last_id = 0
        self._recent: dict[tuple[str, str], tuple[Kept, datetime]] = {}  # the keys of unique_for, and until when

    def put(self, queue: str, data: Any, options: PutOptions) -> tuple[Kept, bool]:
        """The new task, or the one with the same key and True."""
        text = json_data.encode(data)
        key = options.key
        if key is None and (options.unique_data or options.unique_for is not None):
            key = _key_of(json_data.decode(text))
        if key is not None and (there := self._with_key(queue, key)) is not None:
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
        )
        self.tasks[task.id] = task
        if options.unique_for is not None:
            self._recent[queue, str(key)] = task, self.now + timedelta(seconds=float(options.unique_for))  # type: ignore[arg-type]
        return task, False

    def due(self) -> Kept | None:
        """The next task that can run now: the lowest (priority, id)."""
        found = [task for task in self.tasks.values() if task.state in ("ready", "delayed") and task.run_at <= self.now]
        return min(found, key=lambda task: (task.priority, task.id), default=None)

    def settle(self, verb: str, given: dict[str, Any]) -> str:
        """What a settling function of the database does. Returns the state."""
        task = self.tasks[given["id"]]
        if verb in ("ack", "finish"):
            task.state = "done"
            if verb == "finish":
                task.result = json.loads(given["result"])
            for put in json.loads(given.get("puts") or "[]"):
                queue, data = put.pop("queue"), put.pop("data")
                self.put_hook(self.put(queue, data, PutOptions(**put))[0])
        elif verb == "bury" or (verb == "fail" and given.get("delay") is None):
            task.state, task.error = "buried", given.get("error")
            task.attempts += verb == "fail" or given.get("token") is not None
        elif verb in ("release", "fail"):
            self._release(task, given)
        return task.state

    def _release(self, task: Kept, given: dict[str, Any]) -> None:
        delay = float(given.get("delay") or 0)
        task.run_at = self.now + timedelta(seconds=delay)
        task.state = "delayed" if delay else "ready"
        if given.get("priority") is not None:
            task.priority = given["priority"]
        if given.get("error") is not None:
            task.error = given["error"]
            task.attempts += 1

    def _with_key(self, queue: str, key: str) -> Kept | None:
        recent, until = self._recent.get((queue, key), (None, self.now))
        if until > self.now:
            return recent
        alive = (task for task in self.tasks.values() if task.state not in ("done",))
        return next((task for task in alive if (task.queue, task.key) == (queue, key)), None)


def _key_of(data: Any) -> str:
    """As pgqueue.data_key: of a job's task the name and the arguments count."""
    if isinstance(data, dict) and "job" in data:
        data = {"job": data["job"], "args": data.get("args")}
    return json.dumps(data, sort_keys=True)


class MemoryShell:
    """What a Task needs of its client's shell."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.connections = _NoConnections()

    def run(self, call: Call[T], conn: Any = None, *, relaxed: bool = False) -> Any:
        return self.answer(call)

    def answer(self, call: Call[T]) -> T:
        found = _FUNCTION.search(call.sql)
        verb = found[1] if found else "?"
        if verb not in ("ack", "finish", "fail", "bury", "release", "touch", "progress"):
            raise RuntimeError(f"{verb} needs a database, and this test runs without one: use pgqueue.testing.drain()")
        given = dict(zip(_ARGUMENT.findall(call.sql), call.args, strict=True))
        return call.read([(self.store.settle(verb, given), None, None)])

    def encode(self, value: Any) -> str:
        return json_data.encode(value)

    def encode_puts(self, puts: list[Put]) -> str | None:
        return as_json(puts)

    def fence(self, token: int | None = None) -> Fence:
        return Fence(token, None)

    def ended(self, state: str, conn: object) -> str:
        return state

    def prepare_put(self, queue: str, conn: Any, *, in_lanes: bool = False, waits: bool = False) -> Any:
        return None


class AsyncMemoryShell(MemoryShell):
    """The same for an AsyncTask."""

    async def run(self, call: Call[T], conn: Any = None, *, relaxed: bool = False) -> Any:
        await asyncio.sleep(0)
        return self.answer(call)

    async def prepare_put(self, queue: str, conn: Any, *, in_lanes: bool = False, waits: bool = False) -> Any:
        return None


class _NoConnections:
    async def close(self) -> None:
        pass


@dataclass(frozen=True, slots=True)
class MemoryClient:
    """What dispatch.py needs of a client."""

    shell: Any
    aio: Any = None


class MemoryQueue:
    """A queue to put into, of blocking code."""

    def __init__(self, store: Store, name: str) -> None:
        self.name = name
        self._store = store

    def put(self, data: Any, *, conn: Any = None, **options: Any) -> Task:
        return bind(Task(**self._placed(data, options)), MemoryShell(self._store))

    def put_many(self, items: Any, *, conn: Any = None, **options: Any) -> list[int]:
        PutManyOptions.of(options)  # type: ignore[arg-type]
        return [self._placed(data, options)["id"] for data in list(items)]

    def _placed(self, data: Any, options: Any) -> dict[str, Any]:
        kept, existed = self._store.put(self.name, data, put := PutOptions.of(options))
        if not existed:
            self._store.put_hook(kept)
        return {
            "id": kept.id,
            "queue": self.name,
            "state": kept.state,
            "data": kept.data,
            "priority": kept.priority,
            "lane": put.lane,
            "key": put.key,
            "existed": existed,
        }


class AsyncMemoryQueue(MemoryQueue):
    """The same, of async code."""

    async def put(self, data: Any, *, conn: Any = None, **options: Any) -> AsyncTask:  # type: ignore[override]
        return bind(AsyncTask(**self._placed(data, options)), AsyncMemoryShell(self._store))

    async def put_many(self, items: Any, *, conn: Any = None, **options: Any) -> list[int]:  # type: ignore[override]
        return super().put_many(items, **options)


EPOCH = datetime(2030, 1, 1, tzinfo=UTC)  # of a test's clock
