"""A shift: one set of handlers at work, with their crews and the settler that they share. A reload replaces it.

The end of a shift has a bound, the end of the worker's grace. Until then handlers under way may finish. After it the
watch cuts them off (overdue.py); their tasks are released and not charged, since they did not fail. Threads that do not
end are left behind: they are daemons.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .._async.shell import AsyncShell
from .._calls.take import Taken
from .._engine.core import Core
from .._sync.client import Client
from .._sync.shell import Shell
from .._values.logs import log
from ..errors import Error
from ..jobs.retry import Newer, Retry
from ..jobs.starts import Begun, BegunInLoop
from . import limiting
from .batches import Batches, bind_batch
from .bridge import Bridge
from .buffer import Buffer
from .cancelling import Cancelling
from .children import LEAVE, Children, Recycling
from .crew import Crew
from .failures import State
from .fronts import Front
from .homes import AsyncHomes, Homes, WorkServers
from .loops import Goodbye, Hello, Life
from .means import Means
from .neglect import Neglect
from .newer import Waiting
from .overdue import Limits, Watch
from .runners import Coroutines, Threads
from .runs import OVER, STOPPED, Known, Run, Runs
from .scheduling import Scheduling
from .served import Served
from .serving import Serving
from .settler import Settler
from .settlers import Settlers
from .shares import Shares
from .sources import AllServers, OneServer, Source
from .telling import under_way

JOIN = 0.1  # seconds between two looks whether the grace is over
SAY = 5.0  # seconds between two lines about the handlers that a stop waits for
PARTING = 0.3  # seconds for child processes to end when the grace is over
BRIDGE = 0.3  # seconds for the async jobs of mixed queues to end, once cancelled


@dataclass(frozen=True, slots=True)
class Terms:
    """The settings that a worker's shifts share. Times in seconds.

    Attributes:
        limits: the time limits of handlers and jobs without their own.
        recycling: when child processes are replaced.
        known: the runs of all shifts.
        shares: the most runners that each of some queues may hold.
        schedules: whether to fire schedules, where the home server is served.
        closed: called if the client is closed.
        failed: called with the error that ends the worker.
        reached: called with each server at which a shift begins to work.
    """

    concurrency: int
    policy: Retry
    limits: Limits
    recycling: Recycling
    known: Known
    shares: Mapping[str, int]
    schedules: bool
    closed: Callable[[], None]
    failed: Callable[[Error], None]
    reached: Callable[[Core], None]


class Shift:
    """Works until stop(), and has ended after end()."""

    def __init__(self, front: Front, served: Served, terms: Terms) -> None:
        client = front.client
        self._starts = list(client.starts)
        self._begun = Begun(self._starts)
        self._cores = front.cores
        self._home = front.home
        clients = [Client.over(Shell(core)) for core in self._cores]  # with connections of their own
        self._client = clients[0]
        self._terms = terms
        self._until = float("inf")  # the end of the grace
        self._servers = WorkServers(clients, self._begin_at)
        self._homes = Homes(self._servers, [client.shell for client in clients])
        self._settler = Settler(self._client.shell) if len(clients) == 1 else Settlers(self._homes)
        self._runs = Runs(terms.known, self._settler.put_off)
        self._runs.label = self._client.shell.core.label
        self._buffers: list[Buffer] = []
        self._cancellings: list[Cancelling] = []
        self._children = Children(
            served.modules(), terms.recycling, client.child_setup(), several=len(served.names) > 1
        )
        self._served = served
        self._bridges = {queue: self._new_bridge() for queue in served.names}
        self._means = Means(self._runs, terms.limits, self._bridges, self._children)
        self._serving: dict[str, Serving[Any]] = {}
        self._waiting = Waiting()
        self._watch = Watch(self._homes, self._runs, self._settler, terms.limits, terms.failed, self._failed)
        self._crews: list[Crew] = []
        self._manning = threading.Lock()  # of the watch, which may begin a crew, against a stop
        self._stopped = False
        self._neglects = [Neglect(shell, self._crews) for shell in self._homes.all]
        self._scheduling: Scheduling | None = None
        try:
            if len(clients) == 1:
                self._begin_at(self._client)
            else:
                self._servers.reach()
            if terms.schedules and front.serves_home:
                self._scheduling = Scheduling(self._client, client.schedules.declared)
            self._begin(served)
        except BaseException:  # a handler without a signature: end the crews that have begun
            self.stop()
            self.end()
            raise

    def _begin_at(self, client: Client) -> None:
        """Begin to work at a server, once it can be reached."""
        limiting.declare(client, self._served)
        shell, core = client.shell, client.shell.core
        self._cancellings.append(
            Cancelling(
                core.listener().cancels,
                self._runs,
                self._settler.give_back,
                self._buffers,
                lambda id: self._homes.of(id) is shell,
            )
        )
        self._terms.reached(core)

    def _handle_here(self) -> None:
        for core in {*self._cores, self._home}:
            core.handle_here()

    def _begin(self, served: Served) -> None:
        homes, settler, retry, means = self._homes, self._settler, self._terms.policy, self._means
        for queue, handler in served.batches.items():
            call = bind_batch(homes, self._bridges[queue], handler.function)
            serving = self._serving[queue] = Serving(call, served.policy(queue, retry))
            n, _ = self._shared([queue])
            self._man([queue], Batches(n, handler.n, self._handle_batch(serving), self._runs, self._handle_here))
        blocking = served.blocking(homes, retry, settler.finish, means)
        self._serving.update(blocking)
        if blocking:
            n, shares = self._shared(list(blocking))
            handle = self._handle(blocking)
            self._man(list(blocking), Threads(n, handle, self._runs, self._handle_here, shares=shares))
        if queues := [queue for queue in (*served.handlers, *served.queues) if queue not in blocking]:
            self._man_loop(queues)

    def _shared(self, queues: Sequence[str]) -> tuple[int, Shares | None]:
        """How many runners a crew of these queues has, and how the queues share them; None: there is one queue."""
        n, given = self._terms.concurrency, self._terms.shares
        if len(queues) == 1:
            return given.get(queues[0], n), None
        return n, Shares(n, queues, given)

    def _man_loop(self, queues: list[str]) -> None:
        """Begin to take tasks of these queues for async handlers."""
        n, shares = self._shared(queues)
        runners = Coroutines(n, self._life, self._runs, shares, self._part)
        self._watch.loops.append(runners)
        self._man(queues, runners)

    def _part(self, queue: str, tasks: list[Taken]) -> None:
        """A handler of this queue has blocked the loop of several queues: from now on it has a loop to itself, as many
        runners, and these tasks. The watch calls this."""
        with self._manning:
            if not self._stopped:
                for crew in self._crews:
                    crew.leave(queue)
                self._man_loop([queue])
                tasks = self._watch.loops[-1].buffer.fill(tasks)
        self._settler.give_back(tasks)

    def _life(self) -> Life:
        """The functions of a loop."""
        aio = self._new_aio()
        awaiting = self._served.awaiting(self._homes, aio, self._terms.policy, self._settler.finish, self._means)
        self._serving.update(awaiting)
        hello, end = self._hooks()

        async def goodbye() -> None:
            await end()
            await aio.close()

        return Life(self._handle_async(awaiting), self._handle_here, hello, goodbye)

    def _man(self, queues: list[str], runners: Threads | Coroutines) -> None:
        """Begin to take tasks of these queues for these runners."""
        self._buffers.append(runners.buffer)
        closed, settler = self._terms.closed, self._settler
        source: Source = OneServer(self._client)
        if isinstance(settler, Settlers):
            source = AllServers(self._servers, settler.open_servers)
        self._crews.append(Crew(self._client, queues, runners, settler, source, closed, self._seen))

    def _seen(self, tasks: list[Taken]) -> None:
        """The crews have taken these."""
        for cancelling in self._cancellings:
            cancelling.seen(tasks)

    def _new_bridge(self) -> Bridge:
        return Bridge(self._new_aio, self._handle_here, self._hooks)

    def _new_aio(self) -> AsyncHomes:
        """The shells for one loop, to which their connections belong."""
        return AsyncHomes(self._servers, [AsyncShell(core) for core in self._cores])

    def _hooks(self) -> tuple[Hello, Goodbye]:
        """The begin and the end of the client's async hooks, in a loop. If one fails, the worker ends."""
        begun = BegunInLoop(self._starts)

        async def hello() -> bool:
            try:
                await begun.begin()
            except Error as error:
                self._terms.failed(error)
                return False
            return True

        async def goodbye() -> None:
            for error in await begun.end():
                self._terms.failed(error)

        return hello, goodbye

    def hurry(self, until: float) -> None:
        """The worker stops: its grace is over at the monotonic time `until`. The settler gives up soon."""
        self._until = until
        self._settler.stop(until)

    def stop(self) -> None:
        """Stop taking and starting tasks. Does not wait."""
        if self._scheduling is not None:
            self._scheduling.stop()
        with self._manning:  # no crew begins after that
            self._stopped = True
        for crew in self._crews:
            crew.stop()

    def end(self) -> None:
        """Release the tasks that were not started, and wait until those under way are settled; after stop().

        Once the grace is over, it waits for no handler any more.
        """
        for crew in self._crews:
            crew.give_back()
        say_at = time.monotonic() + SAY
        while not all(crew.join(JOIN) for crew in self._crews):
            if time.monotonic() >= self._until:
                log.warning("the grace is over: %s handlers are cut off", self._watch.stop_all())
                break
            if time.monotonic() >= say_at and (left := self.under_way()):
                say_at += SAY
                log.info("still under way: %s", under_way(left))
        if self._scheduling is not None:
            self._scheduling.join(self._until)
        self._watch.end()
        for cancelling in self._cancellings:
            cancelling.end()
        self._close_bridges()
        self._children.close(max(PARTING, min(LEAVE, self._until - time.monotonic())))
        self._settler.close()
        for shell in self._homes.all:
            shell.connections.close()
        for error in self._begun.end():
            self._terms.failed(error)

    def _close_bridges(self) -> None:
        for bridge in self._bridges.values():
            bridge.close()
        until = time.monotonic() + BRIDGE
        for bridge in self._bridges.values():
            bridge.join(max(0.0, until - time.monotonic()))

    def under_way(self) -> list[Run]:
        return self._runs.under_way()

    @property
    def looked_at(self) -> float:
        """The monotonic time of the last look of the watch."""
        return self._watch.looked_at

    def neglected(self) -> str | None:
        """The tasks that wait although runners are idle, in words; None: none."""
        return next(filter(None, [neglect.found() for neglect in self._neglects]), None)

    def ended_thread(self) -> str | None:
        """The name of a thread that has ended and should not have, before stop()."""
        threads = [self._watch.thread, *(crew.thread for crew in self._crews)]
        ended = [thread.name for thread in threads if not thread.is_alive()]
        return next(iter([*self._settler.ended_threads(), *ended]), None)

    def _failed(self, run: Run) -> None:
        """A run was written off that still had its take: its attempt has failed."""
        serving = self._serving[run.task.queue]
        if run.cancelled:
            self._end_cancelled(run, serving)
        else:
            self._settler.fail(serving.failure(run.task, run.failed_by(), run.began, state="timeout"))
            self._settler.tell()

    def _end_cancelled(self, run: Run, serving: Serving[Any]) -> None:
        why = f"it was cancelled: {run.reason or 'no reason was given'}"
        self._settler.fail(serving.failure(run.task, why, run.began, state="cancelled"))
        self._settler.tell()

    def _raised(self, task: Taken, serving: Serving[Any], error: BaseException | str) -> None:
        """A handler has raised. If its run was cut, the cut is the reason."""
        run = self._runs.of(task)
        if run.written_off or run.cut is OVER:
            return  # the watch has settled the task, or the database has
        if run.cut is STOPPED:
            self._settler.give_back([task])
        elif run.cancelled:
            self._end_cancelled(run, serving)
        elif isinstance(error, Newer) and (delay := self._waiting.delay(task, error)) is not None:
            self._settler.put_off(task, delay)
        else:
            state: State = "failed" if run.cut is None else "timeout"
            self._settler.fail(serving.failure(task, run.failed_by(error), run.began, state=state))

    def _tallied(self, task: Taken, run: Run) -> None:
        """A handler has returned: count its run, unless the watch has settled it in another way."""
        if not run.written_off:
            waited = task.waited + run.began - task.arrived
            self._settler.tallies_of(task).ran.append((task.queue, run.job, waited, time.monotonic() - run.began))

    def _handle(self, served: dict[str, Serving[bool]]) -> Callable[[Taken], None]:
        done, fail, tell, known = self._settler.done, self._settler.fail, self._settler.tell, self._runs.known
        tallied = self._tallied

        def handle(task: Taken) -> None:
            serving, run = served[task.queue], known[task.id]
            try:
                if task.attempts and (refusal := serving.refusal(task)):
                    fail(serving.failure(task, refusal, run.began))
                else:
                    if not serving.run(task):
                        done.append((task.id, task.token, task.queue))
                    tallied(task, run)
            except BaseException as error:  # SystemExit too: a handler does not end the worker
                self._raised(task, serving, error)
            tell()

        return handle

    def _handle_batch(self, serving: Serving[Any]) -> Callable[[list[Taken]], None]:
        done, fail, of, tallied = self._settler.done, self._settler.fail, self._runs.of, self._tallied

        def handle(rows: list[Taken]) -> None:
            refused = {row.id: why for row in rows if row.attempts and (why := serving.refusal(row))}
            rest = [row for row in rows if row.id not in refused]
            settled, errors = serving.run(rest) if rest else (set(), {})
            for row in rows:
                error = errors.get(row.id)
                if row.id in refused:
                    fail(serving.failure(row, refused[row.id], of(row).began))
                elif error is None or row.id in settled:
                    if row.id not in settled:
                        done.append((row.id, row.token, row.queue))
                    tallied(row, of(row))
                else:
                    self._raised(row, serving, error)
            self._settler.tell()

        return handle

    def _handle_async(self, served: dict[str, Serving[Awaitable[bool]]]) -> Callable[[Taken], Awaitable[None]]:
        done, fail, tell, known = self._settler.done, self._settler.fail, self._settler.tell, self._runs.known
        tallied = self._tallied

        async def handle(task: Taken) -> None:
            serving, run = served[task.queue], known[task.id]
            try:
                if task.attempts and (refusal := serving.refusal(task)):
                    fail(serving.failure(task, refusal, run.began))
                else:
                    if not await serving.run(task):
                        done.append((task.id, task.token, task.queue))
                    tallied(task, run)
            except BaseException as error:
                self._raised(task, serving, error)
            tell()

        return handle
