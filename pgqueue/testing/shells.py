"""The shells through which code under test reaches the tasks in memory, and nothing else.

A shell gets the call that would be sent to the database, and does the same to a task in memory. So code under test
uses the real Task, Queue and Client with their real methods.

All I/O of all methods of a client is done by its shells. closed() puts the doors of a memory shell in place of those of
each: a call that memory cannot answer raises an error, and none reaches a server. A shell that is made later, for
example by a Worker, asks the client's core for the way to the server, and gets an error.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NoReturn, TypeVar

from .._async.task import AsyncTask
from .._calls.call import As, Call, Fence
from .._calls.put_options import PutManyOptions, PutOptions
from .._engine.cancels import Watched
from .._engine.duties import Duties
from .._engine.steps import Flow, Run
from .._records.puts import Put, as_json
from .._records.task import bind
from .._sync.task import Task
from .._values import data as json_data
from ..jobs.clients import AsyncClient, Client
from .records import Kept
from .store import Store, seen

T = TypeVar("T")

_SETTLING = frozenset(("ack", "finish", "fail", "bury", "release", "touch", "progress"))

DOORS = ("run", "drive", "for_session", "listener", "prepare_put", "watch", "left")  # of a shell
HINTS = {
    "set_schedule": "declare the schedule by client.cron(), and call tasks.start_schedules(); or",
    "run_schedule": "put the task of the schedule by its job; or",
    "put_graph": "put the tasks one by one, each with after=; or",
    "put_many": "put the tasks of a plain queue one by one, or those of a job; or",
}


def refuse(what: str) -> NoReturn:
    """Raises RuntimeError."""
    hint = HINTS.get(what, "")
    raise RuntimeError(
        f"{what} needs a database, and this test runs without one:{hint and ' ' + hint} use pgqueue.testing.drain()"
    )


class MemoryShell:
    """The part of a shell that the classes of a client need."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.duties = Duties()
        self.connections: Any = _Connections(self)

    def run(self, call: Call[T], conn: Any = None, *, relaxed: bool = False, within: float | None = None) -> Any:
        return self.answer(call)

    def answer(self, call: Call[T]) -> T:
        verb = call.function or "a statement"
        rows = getattr(self, f"_{verb}", None) if verb not in _SETTLING else self._settled(verb)
        if rows is None:
            refuse(verb)
        return call.read(rows(dict(call.given)))

    def drive(self, flow: Flow[T]) -> Any:
        answer = None
        try:
            while True:
                step = flow.send(answer)
                if not isinstance(step, Run):
                    refuse("waiting")
                answer = self.answer(step.call)
        except StopIteration as end:
            return end.value

    def for_session(self, make: Callable[[int], Call[T]], conn: Any = None) -> Any:
        return self.run(make(0))

    def listener(self, *patience: Any) -> Any:
        raise RuntimeError(
            "this test runs without a database: nothing comes while it waits. Run the tasks first, by tasks.run()"
        )

    def watch(self, id: int, token: int) -> Watched:
        return self.store.watch(id, token)

    def left(self, takes: object) -> None:
        """The tasks stay as they are."""

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

    # --- the functions of the database: rows, of the arguments by name

    def _settled(self, verb: str) -> Callable[..., Any]:
        def rows(given: dict[str, Any]) -> Any:
            if (task := self.store.tasks.get(given["id"])) is None:
                row: tuple[Any, ...] = (None, "not found", None)
            elif verb != "bury" and task.state != "taken":
                row = (task.state, "not taken", None)
            else:
                row = (self.store.settle(verb, given), None, None)
            return [(*row, None) if verb == "touch" else row]  # the deadline: there is none

        return rows

    def _put(self, given: dict[str, Any]) -> Any:
        queue, data = given.pop("queue"), json_data.decode(given.pop("data"))
        if unique := isinstance(given.get("key"), As):  # a digest of the data
            del given["key"]
        options = PutOptions(**given, unique_data=unique)
        kept, existed = self.store.put(queue, data, options)
        state, known = seen(kept) if existed else (kept.state, None)
        return [(kept.id, state, existed, None if known is None else json_data.encode(known))]

    def _outcome(self, given: dict[str, Any]) -> Any:
        task = self.store.tasks.get(given["id"])
        if task is None or (task.state == "done" and not task.kept):
            return [("unknown", *[None] * 7)]
        state = (
            "cancelling"
            if task.cancelling and task.state == "taken"
            else "failed"
            if task.state == "buried" and task.kept
            else task.state
        )
        progress = None if task.progress is None else json_data.encode(task.progress)
        return [(state, task.queue, task.attempts, task.error, None, progress, _result(task), None)]

    def _cancel(self, given: dict[str, Any]) -> Any:
        return [(self.store.cancel(given["id"], given["reason"]),)]

    def _cancel_many(self, given: dict[str, Any]) -> Any:
        return [(id, self.store.cancel(id, given["reason"])) for id in given["ids"]]

    def _cancel_key(self, given: dict[str, Any]) -> Any:
        task = self.store.with_key(given["queue"], given["key"])
        return [(None if task is None else self.store.cancel(task.id, given["reason"]),)]

    def _predecessors(self, given: dict[str, Any]) -> Any:
        return [self._ended(self.store.tasks[id]) for id in self.store.tasks[given["id"]].after]

    def _ended(self, task: Kept) -> tuple[Any, ...]:
        state = (
            "cancelling"
            if task.cancelling and task.state == "taken"
            else "failed"
            if task.state == "buried"
            else task.state
        )
        return task.id, state, task.queue, _result(task), task.error

    def _get_step(self, given: dict[str, Any]) -> Any:
        value = self.store.steps.get((given["id"], given["name"]))
        return [(value is not None, value, None, None, None)]

    def _record_step(self, given: dict[str, Any]) -> Any:
        return [(self.store.steps.setdefault((given["id"], given["name"]), given["value"]), None, None, None)]


def _result(task: Kept) -> str | None:
    """The kept result as JSON, which is null where the function returned None."""
    return json_data.encode(task.result) if task.state == "done" and task.kept else None


class AsyncMemoryShell(MemoryShell):
    """The same for async code."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.connections = _AsyncConnections(self)

    async def run(self, call: Call[T], conn: Any = None, *, relaxed: bool = False, within: float | None = None) -> Any:
        await asyncio.sleep(0)
        return self.answer(call)

    async def drive(self, flow: Flow[T]) -> Any:
        await asyncio.sleep(0)
        return super().drive(flow)

    async def for_session(self, make: Callable[[int], Call[T]], conn: Any = None) -> Any:
        return await self.run(make(0))

    async def listener(self, *patience: Any) -> Any:
        return super().listener()

    async def prepare_put(self, queue: str, conn: Any, *, in_lanes: bool = False, waits: bool = False) -> Any:
        return None


class _Connections:
    def __init__(self, shell: MemoryShell) -> None:
        self._shell = shell

    def run_all(self, calls: Iterable[Call[T]], ahead: int = 0) -> Any:
        return [self._shell.answer(call) for call in calls]

    def close(self) -> Any:
        pass

    def __getattr__(self, name: str) -> NoReturn:
        refuse("a connection")


class _AsyncConnections(_Connections):
    async def run_all(self, calls: Iterable[Call[T]], ahead: int = 0) -> Any:
        return super().run_all(calls)

    async def close(self) -> Any:
        pass


@contextmanager
def closed(client: Client | AsyncClient, store: Store) -> Iterator[None]:
    """Within this block the shells of a client reach the tasks in memory, and nothing else."""
    core = client.shell.core
    found: list[Any] = [client.shell]
    found.append(client.aio.shell if isinstance(client, Client) else client._blocking.shell)
    with ExitStack() as stack:
        for shell in found:
            is_async = asyncio.iscoroutinefunction(shell.run)
            memory = AsyncMemoryShell(store) if is_async else MemoryShell(store)
            doors: dict[str, Any] = {name: getattr(memory, name) for name in (*DOORS, "connections")}
            stack.enter_context(_replaced(shell, doors | {"together": None}))
        ways = ("conninfo", "check", "listener")
        stack.enter_context(_replaced(core, {name: lambda *given: refuse("a connection") for name in ways}))
        yield


@contextmanager
def _replaced(of: Any, attributes: dict[str, Any]) -> Iterator[None]:
    before = {name: vars(of)[name] for name in attributes if name in vars(of)}
    vars(of).update(attributes)
    try:
        yield
    finally:
        for name in attributes:
            del vars(of)[name]
        vars(of).update(before)


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
        put = PutOptions.of(options)
        if put.batch is not None:
            refuse("a batch")
        kept, existed = self._store.put(self.name, data, put)
        state, known = seen(kept) if existed else (kept.state, kept.data)
        return {
            "id": kept.id,
            "queue": self.name,
            "state": state,
            "data": known,
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
