"""The tasks of a real database, run in the test's own thread until none is left."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from typing import Any

from .._async.shell import AsyncShell
from .._calls import ack, results
from .._calls.call import Fence
from .._calls.take import Taken
from .._sync.client import Client as PlainClient
from .._sync.shell import Shell
from .._sync.task import Task
from .._values import arguments
from .._values import data as json_data
from ..errors import TakeLost, TaskNotFound
from ..jobs.clients import AsyncClient, Client
from ..jobs.retry import Retry
from ..worker.apart import Apart
from ..worker.batches import bind_batch
from ..worker.describing import TOLD, describe
from ..worker.failures import recorded
from ..worker.homes import AsyncHomes, only
from ..worker.served import Served
from ..worker.serving import Serving
from .records import Ran, State

MOST = 10_000


def drain(
    client: Client | AsyncClient,
    *,
    queues: Sequence[str] | None = None,
    exclude: Sequence[str] = (),
    delayed: bool = False,
    propagate: bool = True,
    retry: Retry | None = None,
    most: int = MOST,
) -> list[Ran]:
    """Run the tasks in the queues of a client's jobs and handlers, one after another, until none is left.

    It treats a task as a worker does: arguments are checked, results are kept, failed tasks are released or buried by
    their policy. The hooks of client.on_start() begin first and end last. Blocks; in async code call it by
    asyncio.to_thread.

    Args:
        client: the client of the jobs and handlers. It stays open.
        queues, exclude: as for Worker.
        delayed: run delayed tasks too, in the order in which they are due, each when no other is left. A retry is one;
            without this it is left, also if it becomes due before the last task has run.
        propagate: raise a handler's exception if it buries its task.
        retry: the worker's policy; default that of a Worker.
        most: after this number of runs, RuntimeError: tasks put tasks without end.

    Returns:
        The attempts, in their order.

    Raises:
        Exception: a handler's exception that buries its task, unless propagate is off.
        Error: a hook of on_start() failed.
        RuntimeError: there were too many runs.
    """
    arguments.count("most", most)
    served = Served.of(client, None, queues, exclude)
    with _Drain(client, served, retry or Retry()) as drained:
        drained.begin()
        done: list[Ran] = []
        while (row := drained.take(delayed)) is not None:
            if len(done) >= most:
                raise RuntimeError(f"{most} runs, and there are still tasks to run in {row.queue}")
            attempt = drained.run(row)
            done.append(attempt)
            if propagate and attempt.state == "buried":
                raise attempt.exception or RuntimeError(attempt.error)
        return done


class _Drain:
    def __init__(self, client: Client | AsyncClient, served: Served, retry: Retry) -> None:
        core = client.shell.core
        self._client = PlainClient.over(Shell(core))
        self._aio = AsyncHomes(None, [AsyncShell(core)])
        self._apart = Apart(lambda: self._aio, client.starts)
        self._queues = served.names
        self._results: dict[int, tuple[str, float]] = {}
        self._retries: set[int] = set()
        self._early: list[Task] = []  # retries that were due before the end
        self._serving: dict[str, Serving[Any]] = {
            **served.blocking(only(self._client.shell), retry, self._finish, self._apart.means),
            **self._awaiting(served, retry),
        }
        for queue, handler in served.batches.items():
            self._serving[queue] = Serving(self._one_of_batch(handler.function), served.policy(queue, retry))

    def __enter__(self) -> _Drain:
        return self

    def __exit__(self, *exception: object) -> None:
        with contextlib.ExitStack() as stack:
            stack.callback(self._client.shell.connections.close)
            stack.callback(self._apart.end)
            for task in self._early:
                with contextlib.suppress(TakeLost):  # its time to run was over
                    task.release()

    def begin(self) -> None:
        """Begin the hooks."""
        self._apart.begin()

    def take(self, delayed: bool) -> Taken | None:
        while found := self._client.take_many(self._queues, 1, timeout=0):
            if delayed or found[0].id not in self._retries:
                break
            self._early.append(found[0])  # until the end: it would be taken again
        if not found and delayed:
            for name in self._queues:
                queue = self._client.queue(name)
                if (next_due := queue.peek_next("delayed")) is not None:
                    with contextlib.suppress(TaskNotFound):
                        queue.kick_task(next_due)
                    found = self._client.take_many(self._queues, 1, timeout=0)
                    break
        if not found:
            return None
        task = found[0]
        text = json_data.encode(task.data, 1 << 30)
        assert task.token is not None
        of = task.queue, task.redelivered
        return Taken(task.id, task.token, task.priority or 0, task.attempts, task.deadline, text, *of)

    def run(self, row: Taken) -> Ran:
        serving, began = self._serving[row.queue], time.monotonic()
        try:
            if row.attempts and (refusal := serving.refusal(row)):
                return self._failed(row, serving, refusal, began)
            settled = self._apart.run(row, serving.run)
        except Exception as error:
            return self._failed(row, serving, error, began)
        fence = Fence(row.token, None)
        if row.id in self._results:
            text, keep = self._results.pop(row.id)
            self._client.shell.run(results.finish(row.id, fence, text, keep))
        elif not settled:
            with contextlib.suppress(TaskNotFound):  # the handler acked it in a transaction of its own
                self._client.shell.run(ack.ack(row.id, fence))
        return Ran(id=row.id, queue=row.queue, job=serving.policy(row).job, state="done")

    def _failed(self, row: Taken, serving: Serving[Any], error: BaseException, began: float) -> Ran:
        failed = serving.failure(row, error, began)
        self._client.shell.run(results.fail_many([recorded(failed)]))  # or the handler settled it before it failed
        state: State = "buried" if failed.delay is None else "delayed" if failed.delay else "ready"
        if state == "delayed":
            self._retries.add(row.id)
        return Ran(
            id=row.id,
            queue=row.queue,
            job=failed.job,
            state=state,
            error=failed.error,
            exception=error,
            delay=failed.delay,
        )

    def _finish(self, row: Taken, result: str, keep: float) -> None:
        self._results[row.id] = result, keep

    def _awaiting(self, served: Served, retry: Retry) -> dict[str, Serving[bool]]:
        apart = self._apart

        def blocking(serving: Serving[Any]) -> Serving[bool]:
            async def run(row: Taken) -> bool:
                return bool(await serving.run(row))

            return Serving(lambda row: apart.bridge.run(lambda _: run(row)), serving.policy)

        awaiting = served.awaiting(only(self._client.shell), self._aio, retry, self._finish, apart.means)
        return {queue: blocking(serving) for queue, serving in awaiting.items()}

    def _one_of_batch(self, function: Any) -> Any:
        call = bind_batch(only(self._client.shell), self._apart.bridge, function)

        def run(row: Taken) -> bool:
            settled, errors = call([row])
            if row.id in errors and row.id not in settled:
                raise _as_kept(errors[row.id])
            return row.id in settled

        return run


def _as_kept(error: BaseException | str) -> BaseException:
    """The error of one task of a batch, with the text that a worker keeps: without the place here that raises it."""
    raised = error if isinstance(error, BaseException) else RuntimeError(error)
    setattr(raised, TOLD, describe(raised) if raised is error else error)
    return raised
