"""Child processes for handlers with isolation="process".

Theory of operation
-------------------
A runner's thread T1 lends a child, sends it an order (which function, the task's data), and waits for the answer.
There is one child for each runner that needs one at a time, so there is no queue and no pool manager between the two. A
child is a new interpreter (child.py) and serves many tasks. It gets no connection, lock or thread of its parent, and
nothing is pickled: the order has the import path of the function, and JSON.

The time that a child needs to start and to import its modules is not the handler's: the run's limits begin when the
order is sent.

How a child ends:
  it dies (a crash, os._exit, the kernel's out-of-memory killer)
        T1 sees that the process has ended, by its pidfd. Its socket may stay open in a program that the handler
        started. The task's attempt has failed with ProcessDied, no other task is charged, and a new child begins.
  the watch T2 ends its run
        SIGKILL for its process group and its descendants, so processes that the handler started end as well, unless
        their parent has ended before.
  it has served enough tasks, holds too much memory, or could not be set up, or the shift ends
        It is asked to end, and killed after LEAVE seconds.
  the worker dies, by SIGKILL too
        Linux kills the child (PR_SET_PDEATHSIG), also in the midst of a C call. The kernel sends that signal when the
        *thread* ends that started the child. So one thread of the pool starts all of them, and lives as long as they
        do. Elsewhere a thread of the child sees that the socket was closed.

T1 has its answer while T2 kills: a child that is lent again would die in the next task. Under the child's lock T1 takes
its run out of the child, and T2 looks for the run before it signals. A child that was killed is never lent again.

Why not a library: pebble loses a task whose child took it just before a cancelled one was killed (an open bug,
noxdafox/pebble#153), looks at its processes in steps of 0.1 s, and pickles data. loky has no way to end one task.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from .._engine.owners import Owned, errand
from .._values import arguments
from ..errors import ProcessDied
from ..jobs.setups import ChildSetup
from .process import START, Answers, Child
from .runs import Run

LEAVE = 5.0  # seconds for a child that was asked to end


@dataclass(frozen=True, slots=True)
class Recycling:
    """When a child is replaced. None: never.

    Attributes:
        tasks: after this number of tasks.
        memory: after a task at whose end it holds more than this number of bytes of resident memory.
    """

    tasks: int | None = None
    memory: int | None = None

    @classmethod
    def of(cls, tasks: int | None, memory: int | None) -> Recycling:
        """As given to a worker. Raises ValueError."""
        return cls(
            None if tasks is None else arguments.count("max_child_tasks", tasks),
            None if memory is None else arguments.count("max_child_memory", memory),
        )

    def is_due(self, served: int, memory: int) -> bool:
        return (self.tasks is not None and served >= self.tasks) or (self.memory is not None and memory > self.memory)


class Children:
    """The child processes of a shift. Each does the `setup` at its start, and then imports the `modules`.

    `several`: they serve several queues. The last idle child is then kept for those that have none at work and whose
    last one did not die. Only the tasks of a queue that kills its children wait for the start of new ones.
    """

    def __init__(
        self,
        modules: Sequence[str],
        recycling: Recycling = Recycling(),  # frozen
        setup: ChildSetup | None = None,
        several: bool = False,
    ) -> None:
        self._modules = list(modules)
        self._several = several
        self._lent: Counter[str] = Counter()  # runs that have or want a child, by queue
        self._deadly: set[str] = set()  # queues whose last child has died, or was killed
        self._setup = setup
        self._recycling = recycling
        self._lock = threading.Lock()
        self._idle: list[Child] = []
        self._all: set[Child] = set()
        self._closed = False
        self._jobs: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._keeper = Owned("pgqueue-children", self._keep, lambda: self._closed)

    def run(self, run: Run, order: Mapping[str, Any], answers: Answers = lambda asked: None) -> Any:
        """Run a handler in a child, in the thread of its run. Returns the result, as JSON gives it.

        Args:
            order: for child.py: `path`, the function's `module:name`; `data`; `task`.
            answers: is called with a request of the child, and returns the answer.

        Raises:
            ProcessDied: the child has ended, also since the run was cut.
            Failed: the handler has raised; `error` is like its exception.
        """
        run.began = time.monotonic() + START  # its limits do not begin yet; START and a limit are its end
        queue_name = run.task.queue
        with self._at_work(queue_name):
            child = self._lend(queue_name)
            try:
                with child.lent(run):
                    if run.cut is not None or run.cancelled:
                        raise ProcessDied("its run was ended before it began")
                    return child.serve(run, order, answers)
            except ProcessDied:
                child.killed = True
                raise
            finally:
                self._take_back(child, queue_name)

    def close(self, within: float = LEAVE) -> None:
        """Ask all children to end, and kill those that have not within these seconds. No run may be under way."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for child in idle:
            child.ask_to_leave()
        until = time.monotonic() + within
        for child in idle:
            child.reap(until)
            self._all.discard(child)
        self._jobs.put(None)
        if self._keeper.ident:
            self._keeper.join(LEAVE)

    def pids(self) -> list[int]:
        """The processes at present."""
        return sorted(child.process.pid for child in list(self._all) if child.process.returncode is None)

    @contextmanager
    def _at_work(self, queue_name: str) -> Iterator[None]:
        with self._lock:
            self._lent[queue_name] += 1
        try:
            yield
        finally:
            with self._lock:
                self._lent[queue_name] -= 1

    def _lend(self, queue_name: str) -> Child:
        begun: queue.SimpleQueue[Child | BaseException] = queue.SimpleQueue()
        with self._lock:
            kept = self._several and (self._lent[queue_name] > 1 or queue_name in self._deadly)
            while len(self._idle) > kept:
                if (child := self._idle.pop()).process.poll() is None:
                    return child
                self._retire(child, time.monotonic())  # it was killed while it was idle
            if not self._keeper.ident:  # the first: a worker without such handlers has no such thread
                self._keeper.start()
            if self._closed:  # the keeper may have ended, and would not answer
                raise ProcessDied("its run was ended before it began")
            self._jobs.put(lambda: begun.put(self._begun()))
        try:
            new = begun.get(timeout=START)
        except queue.Empty:  # the keeper hangs, or was ended when it got this job
            raise ProcessDied(f"no process could be started for the handler within {START:g} s") from None
        if isinstance(new, BaseException):
            raise ProcessDied(f"no process could be started for the handler: {new}") from new
        return new

    def _take_back(self, child: Child, queue_name: str) -> None:
        dead = child.killed or child.process.poll() is not None
        with self._lock:
            (self._deadly.add if dead else self._deadly.discard)(queue_name)
        if dead:
            child.kill()
            self._retire(child, time.monotonic())
            self._jobs.put(self._replace)
        elif child.spoiled or self._recycling.is_due(child.served, child.memory):
            child.ask_to_leave()
            self._retire(child, time.monotonic() + LEAVE)
            self._jobs.put(self._replace)
        else:
            self._put_back(child)

    def _put_back(self, child: Child) -> None:
        with self._lock:
            if not self._closed:
                self._idle.append(child)
                return
        child.ask_to_leave()
        self._retire(child, time.monotonic() + LEAVE)

    def _retire(self, child: Child, until: float) -> None:
        def reap() -> None:
            child.reap(until)
            self._all.discard(child)

        errand("pgqueue-reaper", reap).start()

    # --- in the keeper's thread

    def _keep(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()
        for child in list(self._all):  # lent to a run that was written off, or asked to end just now
            child.kill()
            child.process.wait()

    def _begun(self) -> Child | BaseException:
        try:
            child = Child(self._modules, self._setup)
            self._all.add(child)
            return child
        except BaseException as error:  # of any kind: a runner waits for the answer
            return error

    def _replace(self) -> None:
        """A child has ended: start the next one before a task waits for it."""
        if not self._closed and not self._idle and isinstance(child := self._begun(), Child):
            self._put_back(child)
