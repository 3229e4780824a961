"""Jobs without a database: their tasks are kept in memory, and run when the test says so."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from .._calls.take import Taken
from .._records.task import TaskLike, TaskRecord
from .._values import arguments
from .._values import data as json_data
from .._values.arguments import Seconds
from ..errors import NoSchedule, TimeLimitExceeded
from ..jobs.clients import AsyncClient, Client
from ..jobs.retry import Retry
from ..jobs.signature import is_async
from ..worker import dispatch
from ..worker.apart import Apart
from ..worker.handlers import Handler, bind, bind_async
from ..worker.homes import AsyncHomes, only
from ..worker.serving import Policy, Serving
from .records import Kept, Ran
from .schedules import Schedules, is_of_job
from .shells import AsyncMemoryQueue, AsyncMemoryShell, MemoryQueue, MemoryShell, closed, refuse
from .store import EPOCH, Store

MOST = 10_000  # runs in one call: a task that puts itself again would never end


class Tasks(Sequence[Kept]):
    """The tasks that jobs have put since without_database() began, in their order."""

    def __init__(self, client: Client | AsyncClient, retry: Retry, now: datetime, propagate: bool) -> None:
        self._client = client
        self._propagate = propagate
        self._store = Store(now)
        self._schedules = Schedules(self._store)
        self._apart = Apart(self._new_aio, client.starts)
        self._retry = retry

    def _new_aio(self) -> AsyncHomes:
        """The shells of a loop."""
        return AsyncHomes(None, [AsyncMemoryShell(self._store)])  # type: ignore[list-item]  # which does no I/O

    def __getitem__(self, index: Any) -> Any:
        return list(self._store.tasks.values())[index]

    def __len__(self) -> int:
        return len(self._store.tasks)

    def of(self, task: TaskLike) -> Kept:
        """The task that a put returned, or of an id, as it is now."""
        return self._store.tasks[task.id if isinstance(task, TaskRecord) else arguments.task_id(task)]

    @property
    def now(self) -> datetime:
        """The clock of the test. It moves by advance() only; a handler under test may call that as well."""
        return self._store.now

    def advance(self, by: Seconds) -> None:
        """Set the clock forward by a number of seconds, or a timedelta. Runs nothing by itself.

        Puts the tasks of schedules, after start_schedules().

        Raises:
            RuntimeError: more than 10,000 occurrences of schedules are on the way.
        """
        self._schedules.go_to(self.now + timedelta(seconds=arguments.required_seconds("by", by)))

    def start_schedules(self, *names: str) -> None:
        """From now on the clock puts the tasks of the schedules that the code declares, as if a worker always ran.

        Args:
            names: the names of the schedules; none: all of jobs.

        Raises:
            NoSchedule: the code declares no schedule of a job by this name.
        """
        declared = [plan for plans in self._client.schedules.declared.values() for plan in plans.values()]
        plans = {plan.name: plan for plan in declared if is_of_job(plan)}
        for name in names:
            if name not in plans:
                raise NoSchedule(f"the code declares no schedule {name!r} of a job")
        self._schedules.follow(plan for plan in plans.values() if not names or plan.name in names)

    def run(self) -> list[Ran]:
        """Run the tasks that are due now, and those that they put, until none is due. Returns the attempts.

        Raises:
            Exception: a handler's exception that buries its task, unless propagate is off.
            Error: a hook of on_start() failed.
            RuntimeError: tasks put tasks without end.
        """
        done: list[Ran] = []
        while (task := self._store.due()) is not None:
            if len(done) >= MOST:
                raise RuntimeError(f"{MOST} runs, and there are still tasks to run, for example of {task.job}")
            done.append(self._run(task))
        return done

    def run_all(self) -> list[Ran]:
        """As run, and again at the time of the next delayed task, until none is left: the clock goes on with it."""
        done = self.run()
        while waiting := [task.run_at for task in self if task.state == "delayed"]:
            self._schedules.go_to(max(self.now, min(waiting)))
            done += self.run()
            if len(done) >= MOST:
                raise RuntimeError(f"{MOST} runs, and there are still tasks to run")
        return done

    def _run_if_due(self, task: Kept) -> None:
        if task.state == "ready":
            self._run(task)

    def _run(self, task: Kept) -> Ran:
        self._apart.begin()
        task.state, began = "taken", self.now
        row = Taken(task.id, task.id, task.priority, task.attempts, None, _as_jsonb(task.data), task.queue)
        serving = self._serving(task)
        limit = self._limit(task)
        try:
            failed: BaseException | None = serving.refusal(row) if task.attempts else None
            settled = failed is None and self._apart.run(row, serving.run)
        except Exception as error:
            failed = error
        if limit is not None and self.now - began >= timedelta(seconds=limit):
            failed = TimeLimitExceeded(f"it ran for longer than its timeout of {limit:g} s")
        if failed is not None:
            return self._failed(task, serving, row, failed)
        if not settled and task.state == "taken":
            task.state = "done"
        return self._note(task, Ran(id=task.id, queue=task.queue, job=task.job, state=task.state))

    def _failed(self, task: Kept, serving: Serving[bool], row: Taken, error: BaseException) -> Ran:
        found = serving.failure(row, error, time.monotonic())
        if task.cancelling and task.state == "taken":
            task.state = "cancelled"
            return self._note(task, Ran(id=task.id, queue=task.queue, job=task.job, state=task.state, exception=error))
        if task.state == "taken":  # the handler has not settled it
            task.attempts += found.counts
            task.error = found.error if found.counts else task.error
            task.kept = found.delay is None and found.keep is not None
            task.state = "buried" if found.delay is None else "delayed" if found.delay else "ready"
            task.run_at = self.now + timedelta(seconds=found.delay or 0)
        made = self._note(
            task,
            Ran(
                id=task.id,
                queue=task.queue,
                job=task.job,
                state=task.state,
                error=found.error,
                exception=error,
                delay=found.delay,
            ),
        )
        if self._propagate and task.state == "buried":
            raise error
        return made

    def _serving(self, task: Kept) -> Serving[bool]:
        homes: Any = only(MemoryShell(self._store))  # a shell without I/O
        if task.queue in self._client.batch_handlers:
            refuse("a batch handler")
        if (handler := self._client.handlers.get(task.queue)) is not None:
            keep = self._client.keep_results.get(task.queue)
            return Serving(self._plain(homes, handler, keep), lambda row: Policy(self._retry, keep))
        return dispatch.serve(homes, self._client.jobs.names, self._retry, self._finish, self._apart.means)

    def _plain(self, homes: Any, handler: Handler, keep: float | None) -> Callable[[Taken], bool]:
        finish = None if keep is None else partial(self._finish, keep=keep)
        if is_async(handler):
            return lambda row: self._apart.bridge.run(lambda aio: bind_async(aio, handler, finish)(row))
        return bind(homes, handler, finish)

    def _limit(self, task: Kept) -> float | None:
        job = self._client.jobs.find(task.job)
        return None if job is None else job.varied(task.data.get("own", {})).settings.timeout  # type: ignore[return-value]  # seconds by now

    def _finish(self, row: Taken, result: str, keep: float) -> None:
        task = self._store.tasks[row.id]
        task.state, task.result, task.kept = "done", json_data.decode(result), True

    def _note(self, task: Kept, attempt: Ran) -> Ran:
        task.history.append(attempt)
        return attempt


@contextmanager
def without_database(
    client: Client | AsyncClient,
    *,
    inline: bool = False,
    propagate: bool = True,
    retry: Retry | None = None,
    now: datetime = EPOCH,
) -> Iterator[Tasks]:
    """Within this block the jobs of a client put their tasks into memory: no server is needed.

    Keys, unique tasks, priorities, delays, retries and timeouts act as in the database and the worker, by a clock that
    the test sets; so do schedules, after Tasks.start_schedules(). Results, outcomes, progress, steps, cancels, `after`
    and puts into queues of plain handlers work as well. Lanes, limits, ttl and capacities do not act, and `conn` is
    ignored. Any other call of a client, for example for a batch, is a RuntimeError: no call reaches a server. Async
    jobs run in a loop of their own, in another thread. The hooks of client.on_start() begin before the first run, and
    end with this block.

    Args:
        client: the client of the jobs.
        inline: run each task in its put, if it is due.
        propagate: raise a handler's exception if it buries its task.
        retry: the worker's policy, for jobs without one; default that of a Worker.
        now: the time at which the clock begins, with a time zone.

    Yields:
        The tasks.

    Raises:
        ValueError: `now` is not a datetime with a time zone.
        Error: a hook of on_start() failed at its end.
    """
    arguments.moment("now", now)
    tasks = Tasks(client, retry or Retry(), now, propagate)
    if inline:
        tasks._store.put_hook = tasks._run_if_due
    with closed(client, tasks._store), _replaced(client, tasks._store):
        try:
            yield tasks
        finally:
            tasks._apart.end()


@contextmanager
def _replaced(client: Client | AsyncClient, store: Store) -> Iterator[None]:
    """The queues that the client's jobs put into."""
    replaced: dict[str, Callable[[str], Any]] = {
        "blocking_queue": lambda name: MemoryQueue(store, name),
        "awaiting_queue": lambda name: AsyncMemoryQueue(store, name),
    }
    vars(client).update(replaced)
    try:
        yield
    finally:
        for name in replaced:
            del vars(client)[name]


def _as_jsonb(data: Any) -> str:
    """As the database would return it: the shorter name first."""
    if isinstance(data, dict):
        data = dict(sorted(data.items(), key=lambda item: (len(item[0]), item[0])))
    return json_data.encode(data, 1 << 30)
