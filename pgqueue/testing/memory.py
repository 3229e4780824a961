"""Jobs without a database: their tasks are kept in memory, and run when the test says so."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any

from .._calls.take import Taken
from .._records.task import TaskLike, TaskRecord
from .._values import arguments
from .._values import data as json_data
from .._values.arguments import Seconds
from ..errors import NoSchedule
from ..jobs.clients import AsyncClient, Client
from ..jobs.retry import Retry
from ..worker import dispatch
from ..worker.apart import Apart
from ..worker.serving import POISON, Serving
from .records import Kept, Ran
from .schedules import Schedules, is_of_job
from .store import EPOCH, AsyncMemoryQueue, AsyncMemoryShell, MemoryClient, MemoryQueue, MemoryShell, Store

MOST = 10_000  # runs in one call: a task that puts itself again would go on for ever


class Tasks(Sequence[Kept]):
    """The tasks that jobs have put since without_database() began, in their order."""

    def __init__(self, client: Client | AsyncClient, retry: Retry, now: datetime, propagate: bool) -> None:
        self._client = client
        self._propagate = propagate
        self._store = Store(now)
        self._schedules = Schedules(self._store)
        self._apart = Apart(lambda: MemoryClient(AsyncMemoryShell(self._store)), client.starts)
        self._retry = retry

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
        """Set the clock forward by so many seconds, or a timedelta. Runs nothing by itself.

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
            Exception: what a handler raised whose task is buried by that, unless propagate is off.
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
            if task.attempts and serving.poisoned(row):
                failed: Any = POISON
            else:
                with self._apart.run(row):
                    settled = serving.run(row)
                failed = None
        except Exception as error:
            failed = error
        if limit is not None and self.now - began >= timedelta(seconds=limit):
            failed = f"it ran for longer than its timeout of {limit:g} s"
        if failed is not None:
            return self._failed(task, serving, row, failed)
        if not settled and task.state == "taken":
            task.state = "done"
        return self._note(task, Ran(id=task.id, queue=task.queue, job=task.job, state=task.state))

    def _failed(self, task: Kept, serving: Serving[bool], row: Taken, error: BaseException | str) -> Ran:
        found = serving.failure(row, error, time.monotonic())
        if task.state == "taken":  # the handler has not settled it
            task.attempts += found.counts
            task.error = found.error if found.counts else task.error
            task.state = "buried" if found.delay is None else "delayed" if found.delay else "ready"
            task.run_at = self.now + timedelta(seconds=found.delay or 0)
        exception = error if isinstance(error, BaseException) else None
        made = self._note(
            task,
            Ran(
                id=task.id,
                queue=task.queue,
                job=task.job,
                state=task.state,
                error=found.error,
                exception=exception,
                delay=found.delay,
            ),
        )
        if self._propagate and task.state == "buried":
            raise exception or TimeoutError(found.error)
        return made

    def _serving(self, task: Kept) -> Serving[bool]:
        client: Any = MemoryClient(MemoryShell(self._store))
        return dispatch.serve(client, self._client.jobs.names, self._retry, self._finish, self._apart.means)

    def _limit(self, task: Kept) -> float | None:
        job = self._client.jobs.find(task.job)
        return None if job is None else job.settings.timeout  # type: ignore[return-value]  # seconds by now

    def _finish(self, row: Taken, result: str, keep: float) -> None:
        task = self._store.tasks[row.id]
        task.state, task.result = "done", json_data.decode(result)

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
    the test sets; so do schedules, after Tasks.start_schedules(). Lanes, limits, ttl, capacities, `after` and `batch`
    do not. `conn` is ignored. Async jobs run in a loop of their own, in another thread. The hooks of client.on_start()
    begin before the first run, and end with this block.

    Args:
        client: the client of the jobs.
        inline: run each task in its put, if it is due.
        propagate: raise what a handler raises if its task is buried by that.
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
    with _replaced(client, tasks._store):
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
