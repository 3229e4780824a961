"""Moving the tasks of a queue from one server to others: copied there, then deleted here (sql/5_verbs/transfer.sql).

A step has a transaction on the source, and in it one on each target. Those of the targets are committed first. So
however a step is cut off, no task is lost; it may be on both servers, and is then handled at least once.

A task with a lane, or else a key, goes to the target that this name chooses, so that it meets others of the same name
there. A task without a lane whose limit one of the targets keeps goes to that one. Other tasks go to the targets in
turn, page by page.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Self, TypeVar

import psycopg

from ..._calls import moving as calls
from ..._calls.call import Call
from ...errors import ConnectionLost, ServerError
from ..borrowed import run, translated
from ..bounded import BoundedConnection
from ..door import opening
from ..dsn import unreachable

T = TypeVar("T")

PAGE = 1000  # tasks of a step; a lane is not divided
PASSES = 5  # over a queue: a lane from which a claim takes at this moment is left for the next pass
PATIENCE = 15.0  # seconds for an answer of a server


@dataclass(slots=True)
class Moved:
    """The result of a move.

    Attributes:
        copied: how many tasks it has put on the targets.
        met: how many tasks it has deleted on the source alone, since a task with their key was on the target.
        staying: how many tasks are left on the source, by the reason: `taken`; `flow`: a dependency or a batch;
            `awaited`: a client waits for the result; `lane`: one of its lane stays; `new`: put during the move.
    """

    copied: int = 0
    met: int = 0
    staying: dict[str, int] = field(default_factory=dict)


class Mover:
    """Moves tasks from one server. A context manager, which has a connection to each server.

    Args:
        source, targets: conninfos.
        home: the index of the target that a lane or a key belongs to.
        numbers: those of the targets.

    Raises:
        ServerError: a server cannot be reached.
    """

    def __init__(
        self, source: str, targets: Sequence[str], home: Callable[[str], int], numbers: Sequence[int] = ()
    ) -> None:
        self._home = home
        self._numbers: dict[int | None, int] = {number: index for index, number in enumerate(numbers)}
        self._turns = itertools.cycle(range(len(targets)))
        with ExitStack() as opened:
            self._source, *self._targets = [
                opened.enter_context(_Server("the source", source)),
                *(opened.enter_context(_Server(f"target {n}", one)) for n, one in enumerate(targets, 1)),
            ]
            self._opened = opened.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._opened.close()

    def queues(self) -> list[str]:
        """The queues of the source whose tasks can move."""
        return self._source.run(calls.queues())

    def move(self, queue: str, on_progress: Callable[[int], None] | None = None) -> Moved:
        """Move each task of a queue that can move. `on_progress` gets the number of tasks so far, after each step.

        Raises:
            ServerError, ConnectionLost: a server failed. The steps before are done, and the tasks of the last one are
                on the source, and perhaps also on a target.
            QueueNotFound: the source has no such queue.
            PutRefused: a target has no room for the tasks, or drains the queue.
        """
        done = Moved()
        for _ in range(PASSES):
            before = done.copied + done.met
            for _ in itertools.chain(self._move_lanes(queue, done), self._move_others(queue, done)):
                if on_progress is not None:
                    on_progress(done.copied + done.met)
            if done.copied + done.met == before:
                break
        done.staying = self._source.run(calls.staying(queue))
        return done

    def _move_lanes(self, queue: str, done: Moved) -> Iterator[None]:
        after = ""
        while lanes := self._source.run(calls.lanes(queue, after, PAGE)):
            after = lanes[-1]
            while lanes:
                with self._step(queue, done) as step:
                    while lanes and step.moved < PAGE:
                        self._move_lane(queue, lanes.pop(0), step)
                yield

    def _move_lane(self, queue: str, lane: str, step: _Step) -> None:
        after, more = 0, True
        while more:
            page = self._source.run(calls.move_out(queue, PAGE, lane, after))
            step.copy(self._home(lane), page.tasks, continued=page.more)
            after, more = page.last or 0, page.more

    def _move_others(self, queue: str, done: Moved) -> Iterator[None]:
        after: int | None = 0
        while after is not None:
            with self._step(queue, done) as step:
                page = self._source.run(calls.move_out(queue, PAGE, None, after))
                other = next(self._turns)
                parts: list[list[str]] = [[] for _ in self._targets]
                for task, name, home in zip(page.tasks, page.names, page.homes, strict=True):
                    index = other if name is None else self._home(name)
                    parts[self._numbers.get(home, index)].append(task)
                for index, tasks in enumerate(parts):
                    step.copy(index, tasks)
            after = page.last
            yield

    @contextmanager
    def _step(self, queue: str, done: Moved) -> Iterator[_Step]:
        with self._source.transaction(), ExitStack() as copies:
            step = _Step(queue, self._targets, copies)
            yield step
        done.copied += step.copied
        done.met += step.moved - step.copied


class _Step:
    """The copies of one step: a transaction on each target that gets tasks."""

    def __init__(self, queue: str, targets: Sequence[_Server], copies: ExitStack) -> None:
        self.moved = self.copied = 0
        self._queue, self._targets, self._copies = queue, targets, copies
        self._begun: set[int] = set()

    def copy(self, index: int, tasks: Sequence[str], *, continued: bool = False) -> None:
        if not tasks:
            return
        target = self._targets[index]
        if index not in self._begun:
            self._copies.enter_context(target.transaction())
            self._begun.add(index)
        self.moved += len(tasks)
        self.copied += target.run(calls.move_in(self._queue, tasks, continued=continued))


class _Server:
    """A connection to a server. Its errors name the server."""

    def __init__(self, name: str, conninfo: str) -> None:
        self._name = name
        try:
            self._conn = BoundedConnection.connect(opening(conninfo, pooled=False), autocommit=True)
        except psycopg.OperationalError as error:
            raise ServerError(f"{name}: {unreachable(conninfo, error)}") from None
        self._conn.patience = PATIENCE

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._conn.close()

    def run(self, call: Call[T]) -> T:
        with self._naming():
            return run(self._conn, call)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Its COMMIT may fail as well, so this is not psycopg's alone."""
        with translated(self._conn), self._conn.transaction():
            yield

    @contextmanager
    def _naming(self) -> Iterator[None]:
        try:
            yield
        except ConnectionLost as error:
            raise ConnectionLost(f"{self._name}: {error}") from error
