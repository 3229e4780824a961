"""The worker: takes tasks in batches, runs their handlers, and settles them in batches.

    fetcher --fill--> buffer --pop--> runners --append--> settler
    (thread)                          (threads,           (thread)
                                       coroutines)

Sync handlers run in threads, async ones in coroutines of one loop; each kind has a buffer and fetcher of its own
(crew.py). The fetcher takes as many tasks as the buffer wants (buffer.py), the settler acks the tasks that were handled
in the meantime (settler.py), and handlers.py and dispatch.py call the handlers and jobs. A job may run in a child
process, for which a runner's thread waits (children.py). All of these together are a shift (shift.py).

At a stop the shift takes no more tasks, releases the tasks that were not started, and finishes and settles those under
way, for the time of the worker's grace. overdue.py cuts handlers off that do not end; supervisor.py keeps several
processes with a worker each. At a reload another shift begins, with the new handlers, and the old one ends in the same
way, in a thread of its own: a handler that takes an hour does not delay the new handlers.
"""

from __future__ import annotations

import os
import select
import signal
import threading
import time
import uuid
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

from .._engine.core import Core
from .._engine.outages import COMING
from .._engine.owners import errand
from .._values import arguments
from .._values.arguments import Seconds
from .._values.logs import log
from .._values.version import VERSION
from ..errors import Error
from ..jobs.clients import AnyClient
from . import shares as sharing
from . import telling
from .children import Recycling
from .fronts import Front, Fronts
from .handlers import Handler
from .health import Report
from .overdue import Limits
from .policy import policy
from .registration import Registration
from .runs import Known
from .served import Served
from .shift import Shift, Terms
from .spread import Kind, Spread, clustered

__all__ = ["Worker"]

AGAIN = 2.0  # seconds before the new servers of a cluster are tried again
SHORTEST = 0.05  # seconds between two attempts to reach a server at the start
LEAVE = 0.9  # seconds after the end of the grace in which the process ends
STOP, RELOAD, RENEW = b"\0", b"\xff", b"\xfe"  # in the pipe that run() reads; they differ from all signal numbers


class Worker:
    """Runs handlers on the tasks of their queues.

    Args:
        client: the client to take with; a Client or an AsyncClient. It stays open. Or a Cluster or AsyncCluster of
            servers with numbers: the worker takes from all of them, with one set of runners, and fires the schedules of
            the home server. A server that is down is left out until it is back. A cluster that follows its table of
            servers may change: the worker then goes on with the new ones, as after a reload().
        handlers: a function for each queue, sync or async, called with a task's data, and with the Task too (an
            AsyncTask if it is async) if it has a parameter named `task`. Default: those registered with
            client.handler(), with their keep_result, and the jobs of client.job(). When a handler returns, the worker
            acks the task, unless the handler has settled it. An exception is a failed attempt.
        queues: the names of the queues to serve; default: all that have a handler or are the queue of a job. A queue
            that has no handler is served by the client's jobs, if there are any.
        exclude: the names of queues not to serve.
        concurrency: the number of handlers of each kind, sync and async, that run at once.
        shares: the most handlers of a queue that run at once, by the queue's name. With four handlers or more, a queue
            without a share leaves the last one to those queues of its kind that have none at work.
        max_attempts: after this number of failed attempts a task is buried, with its error kept.
        retry_delay: seconds, or a timedelta. A failed task is ready again after a random delay of up to
            retry_delay * 2 ** (attempts - 1): full jitter.
        max_retry_delay: the longest such delay, in seconds or as a timedelta.
        time_limit: seconds, or a timedelta, for a handler, and for a job without a timeout of its own. After this time
            an async handler is cancelled, a process killed, a thread written off, and the attempt has failed. None:
            without limit. A task's own ttr ends a handler as well.
        soft_time_limit: seconds, or a timedelta, after which SoftTimeLimit is raised in a handler, or a job without a
            soft_timeout, that still runs: in an async one at its present await, in a process at once, in a thread at
            its next checkpoint(). None: never.
        max_child_tasks: the number of tasks after which a process of jobs with isolation="process" is replaced. None:
            never.
        max_child_memory: the same, if it holds more than this number of bytes of resident memory at the end of a task.
        grace: seconds, or a timedelta, for the handlers under way when the worker stops. Then async handlers are
            cancelled, threads are left behind, and their tasks are released; that is no failed attempt. None: without
            limit.
        schedules: whether to set the schedules that the client's code declares, and to fire those that are due; see
            client.schedules.
        spread: for a cluster: the number of its servers that this process serves, for a cluster with so many workers
            that each server would have too many connections. The workers of the same queues, jobs, `spread` and role
            share the servers evenly, and again within a few seconds when a worker or a server comes or goes. Every
            server is served: while there are too few workers for that, each serves more. The role needs the verb
            `share` on the home server. None: it serves all servers.
        load: a function that returns the client to go on with. reload() calls it, and with `load` so does SIGHUP. If
            it returns another client, the worker closes the old one once its tasks are done.

    Attributes:
        stopping: set when the stop has begun.
        leave_by: from then on, the monotonic time by which a process that runs nothing else is to end; None without a
            grace.

    Raises:
        ValueError: an option is not valid, or `spread` is given and the client is not a cluster.

    A task is handled at least once. After a worker was killed, other workers repeat the tasks that it had not acked:
    those under way, and those that were done in the last moments before (settler.py has the bound). A ttr runs from the
    take, so it has to include buffer.AHEAD seconds in the buffer. A process handles a task once at a time.

    A handler cannot close the worker's client: close() raises a RuntimeError there, and the attempt has failed.
    """

    def __init__(
        self,
        client: AnyClient,
        handlers: Mapping[str, Handler] | None = None,
        *,
        queues: Sequence[str] | None = None,
        exclude: Sequence[str] = (),
        concurrency: int = 8,
        shares: Mapping[str, int] | None = None,
        max_attempts: int = 20,
        retry_delay: Seconds = 1.0,
        max_retry_delay: Seconds = 3600.0,
        time_limit: Seconds | None = None,
        soft_time_limit: Seconds | None = None,
        max_child_tasks: int | None = None,
        max_child_memory: int | None = None,
        grace: Seconds | None = 30.0,
        schedules: bool = True,
        spread: int | None = None,
        load: Callable[[], AnyClient] | None = None,
    ) -> None:
        self._given = handlers
        self._queues = queues
        self._exclude = exclude
        self._spread = None if spread is None else arguments.count("spread", spread)
        if spread is not None:
            clustered(client)
        self._fronts = Fronts(client)
        self.client.child_setup()
        (served := self._served(self.client)).modules()
        self._load = load
        self._grace = arguments.seconds("grace", grace)
        self._failure: Error | None = None
        self._terms = Terms(
            concurrency=arguments.count("concurrency", concurrency),
            policy=policy(max_attempts, retry_delay, max_retry_delay),
            limits=Limits(
                arguments.seconds("time_limit", time_limit, positive=True),
                arguments.seconds("soft_time_limit", soft_time_limit, positive=True),
            ),
            recycling=Recycling.of(max_child_tasks, max_child_memory),
            known=Known(),
            shares=sharing.shares(shares, concurrency, served.names),
            schedules=arguments.flag("schedules", schedules),
            closed=self.stop,
            failed=self._fail,
            reached=self._reached,
        )
        self.stopping = threading.Event()
        self.leave_by: float | None = None
        self._registrations: dict[Core, Registration] = {}  # by server
        self._registering = threading.Lock()
        self._pipe = os.pipe()
        os.set_blocking(self._pipe[1], False)
        self._present: Shift | None = None
        self._relieving: dict[Shift, threading.Thread] = {}
        self._token = uuid.uuid4().hex
        for end in self._pipe:
            weakref.finalize(self, os.close, end)

    @property
    def _front(self) -> Front:
        return self._fronts.present

    @property
    def client(self) -> AnyClient:
        """The client, or the cluster, of the present handlers."""
        return self._front.client

    @property
    def home(self) -> Core:
        """Of its server; of a cluster, of the home server."""
        return self._front.home

    def run(self) -> None:
        """Work until stop() is called, the client is closed, or the process gets SIGTERM or SIGINT.

        Then finish the tasks under way, for the time of the grace, and release the rest. A second signal ends the
        process at once. With `load`, SIGHUP is reload(). Signals are caught in the main thread only; in another thread,
        call stop().

        If no server answers when the worker starts, it logs one warning, waits, and begins when the server is there.

        Raises:
            ServerError, SchemaError: as the first call of a client, except that an absent server is waited for.
            Error: more handlers hang than the worker can replace; only a new process helps.
        """
        with self._caught_signals():
            try:
                self._fronts.present = self._fronted(self.client)
                self._work()
            finally:
                self._fronts.end()
        if self._failure is not None:
            raise self._failure

    def stop(self) -> None:
        """Let run() return once the handlers under way are done, or the grace is over. May be called in any thread or
        signal handler."""
        self._tell(STOP)

    def reload(self) -> None:
        """Let run() go on with new handlers: those of the client that `load` returns, else those registered by now.

        The old handlers finish the tasks under way, and then their threads end; until then both sets of handlers run,
        each with its `concurrency`. Tasks that were taken and not started are released. If loading fails, the worker
        logs the error and goes on with the old handlers. May be called in any thread or signal handler; does not wait.
        """
        self._tell(RELOAD)

    def _renew(self) -> None:
        """Go on with the servers that the cluster has now. Does not wait."""
        self._tell(RENEW)

    def _tell(self, byte: bytes) -> None:
        with suppress(OSError):  # full: it is stopping; closed: the process ends, and its client was closed before
            os.write(self._pipe[1], byte)

    def _work(self) -> None:
        if not self._reach():
            return
        shift = self._present = self._shift(self._front)
        self._register()
        log.info("working on %s", self.banner())
        self._front.follow(self._renew)
        self._renew()  # the list may have been replaced since the worker was made
        try:
            while (byte := os.read(self._pipe[0], 1)) != STOP:  # a signal's own byte: its handler runs next
                if byte == RELOAD:
                    shift = self._present = self._reloaded(shift)
                elif byte == RENEW:
                    shift = self._present = self._renewed(shift)
        finally:
            self._front.unfollow(self._renew)
            began = time.monotonic()
            until = began + (float("inf") if self._grace is None else self._grace)
            self.leave_by = None if self._grace is None else until + LEAVE
            self.stopping.set()
            if self._front.spread is not None:
                self._front.spread.end()
            for registration in self._registrations.values():
                registration.end()
            for any_shift in [shift, *self._relieving]:
                any_shift.hurry(until)
            shift.stop()
            # A log may block, as a pipe does that no process reads. Above, it would hold up the stop and its bound.
            log.info("stopping: %s", telling.farewell(shift.under_way(), self._grace))
            shift.end()
            for thread in self._relieving.values():
                thread.join(None if self.leave_by is None else max(0.0, self.leave_by - time.monotonic()))
            log.info("stopped after %.1f s", time.monotonic() - began)

    def _reach(self) -> bool:
        """Wait for the server. Returns False if stop() is called first. A reload() waits until then.

        The client's own wait is bounded, and would keep the worker from its signals.
        """
        reload = False
        while (pause := self._reached_within()) != 0:
            if self._is_told(pause):
                byte = os.read(self._pipe[0], 1)
                if byte == STOP:
                    self.stopping.set()
                    return False
                reload = reload or byte == RELOAD
        if reload:
            self.reload()
        return True

    def _reached_within(self) -> float | None:
        """Try to reach a server. Returns the seconds to wait for the next attempt: 0: one was reached; None: until the
        servers are chosen."""
        if not self._front.is_chosen():
            return None
        front = self._front.renewed()
        if front is not self._front:
            self._fronts.ended(self._fronts.replace(front))
        core = front.cores[0]
        try:
            front.reach()
        except COMING as error:
            core.outage.met(error)
            return max(core.pause(), SHORTEST)
        return 0

    def _is_told(self, within: float | None) -> bool:
        """Whether a byte arrives; None: wait for one. A poll: select() fails for the descriptors of a process with more
        than 1024."""
        poll = select.poll()
        poll.register(self._pipe[0], select.POLLIN)
        return bool(poll.poll(None if within is None else within * 1000))

    def banner(self) -> str:
        """The queues that it serves, the database and the limits, in one line. Does not connect."""
        return telling.banner(
            self._front.cores,
            None if self._front.spread else self._spread,
            self._served(self.client),
            self._terms.concurrency,
            self._terms.shares,
            self._terms.policy,
            self._terms.limits,
            self._grace,
        )

    def report(self) -> Report:
        """Whether it is alive and ready, for a health check. Does not wait for the database. May be called in any
        thread."""
        if self.stopping.is_set() or (shift := self._present) is None:
            return Report(live=True, ready=False, why="it is stopping" if self.stopping.is_set() else "it is starting")
        return telling.report(self._front.cores, shift.ended_thread(), shift.looked_at, shift.neglected())

    def _served(self, client: AnyClient) -> Served:
        return Served.of(client, self._given, self._queues, self._exclude)

    def _shift(self, front: Front) -> Shift:
        return Shift(front, self._served(front.client), self._terms)

    def _fronted(self, client: AnyClient, before: Front | None = None) -> Front:
        """A front of this client, at the start or in place of another one. It begins to share servers with others."""
        if self._spread is None:
            return Front(client)
        served = self._served(client)
        jobs = served.jobs if served.queues else ()
        kind = Kind(self._spread, tuple(sorted(served.names)), tuple(sorted(jobs)), self._terms.schedules)
        spread = Spread(clustered(client), kind, self._token, self._renew, self.stop, before.spread if before else None)
        spread.begin()
        return Front(client, spread, before)

    def _register(self) -> None:
        """Register the queues and jobs of this worker at each server that is there, in place of the earlier ones."""
        with self._registering:
            old, self._registrations = self._registrations, {}
            self._registrations = {
                core: self._registration(core) for core in self._front.cores if core.running_listener
            }
        for registration in old.values():
            registration.end()

    def _reached(self, core: Core) -> None:
        """A server that was away when the worker registered can be reached."""
        with self._registering:
            if self._registrations and core in self._front.cores and core not in self._registrations:
                self._registrations[core] = self._registration(core)

    def _registration(self, core: Core) -> Registration:
        served, terms = self._served(self.client), self._terms
        limits = {
            "max_attempts": served.max_attempts(terms.policy),
            "time_limit": terms.limits.hard,
            "soft_time_limit": terms.limits.soft,
            "grace": self._grace,
            "spread": self._spread,
        }
        return Registration(
            core.listener(),
            sorted(served.names),
            sorted(served.jobs) if served.queues else [],
            terms.concurrency,
            {name: value for name, value in limits.items() if value is not None},
            VERSION,
        )

    def _fail(self, error: Error) -> None:
        if self._failure is None:
            log.error("stopping: %s", error)
            self._failure = error
            self.stop()

    def _reloaded(self, old: Shift) -> Shift:
        """A shift with the new handlers in place of the old one. If loading them fails, the old shift."""
        try:
            client = self._load() if self._load else self.client
            if client is self.client and self._spread is None:
                front = self._front.renewed()
            else:
                front = self._fronted(client, self._front)
            new = self._relieved(old, front)  # which does not wait for another server
        except Exception:
            log.exception("reloading failed: going on with the old handlers")
            return old
        log.info("reloaded: working on %s", self.banner())
        return new

    def _renewed(self, old: Shift) -> Shift:
        """A shift with the servers that the cluster has now, if these are others. The old one while none answers."""
        if (front := self._front.renewed()) is self._front:
            return old
        try:
            new = self._relieved(old, front)
        except (Error, ValueError) as error:
            log.warning("the servers of the cluster have changed, and the new ones are tried again soon: %s", error)
            errand("pgqueue-renewal", self._renew_later).start()
            return old
        log.info("the servers %shave changed: working on %s", "" if self._spread else "of the cluster ", self.banner())
        return new

    def _renew_later(self) -> None:
        if not self.stopping.wait(AGAIN):
            self._renew()

    def _relieved(self, old: Shift, front: Front) -> Shift:
        """Start a shift on this front, and end the old one. If that fails, the old front stays."""
        try:
            front.reach()
            new = self._shift(front)
        except BaseException:
            self._fronts.give_up(front)
            raise
        replaced = self._fronts.replace(front)
        front.follow(self._renew)
        replaced.unfollow(self._renew)
        self._register()
        old.stop()
        thread = errand("pgqueue-relief", self._relieve, old, replaced)
        self._relieving = {shift: one for shift, one in self._relieving.items() if one.is_alive()} | {old: thread}
        thread.start()
        return new

    def _relieve(self, shift: Shift, front: Front) -> None:
        shift.end()
        self._fronts.ended(front)

    @contextmanager
    def _caught_signals(self) -> Iterator[None]:
        """Within this block SIGTERM and SIGINT mean stop().

        The signal handler writes into a pipe, since it may run while the main thread holds an Event's lock. Python runs
        a signal handler between two bytecodes of the main thread. If a signal arrives after the last of them and before
        os.read sleeps, or if the kernel delivers it to another thread, the handler would not run until os.read returns:
        hence the wakeup fd, into which the interpreter writes at the signal itself.
        """
        before: dict[int, Any] = {}

        def caught(number: int, frame: FrameType | None) -> None:
            restore()  # the next signal has its usual effect
            self.stop()

        def restore() -> None:
            while before:
                signal.signal(*before.popitem())

        try:
            wakeup = signal.set_wakeup_fd(self._pipe[1], warn_on_full_buffer=False)
        except ValueError:  # not the main thread
            yield
            return
        try:
            for number in (signal.SIGTERM, signal.SIGINT):
                before[number] = signal.signal(number, caught)
            if self._load:
                before[signal.SIGHUP] = signal.signal(signal.SIGHUP, lambda number, frame: self.reload())
            yield
        finally:
            restore()
            signal.set_wakeup_fd(wakeup)
