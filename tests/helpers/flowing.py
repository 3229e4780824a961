"""A take without a database: its flow is driven by hand, over a real hub and a clock of the test's own."""

from __future__ import annotations

import re
import threading
from types import SimpleNamespace
from typing import Any

from pgqueue._calls.take import Taken
from pgqueue._engine import takes
from pgqueue._engine.cursor import ClaimCursor
from pgqueue._engine.hub import Hub
from pgqueue._engine.steps import Flow, Run, Wait
from pgqueue._engine.waiters import Waiter

IDS = {"q": 1, "r": 2}


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


class Listener:
    """What a take needs of the listener."""

    def __init__(self, clock: Clock) -> None:
        self.hub = Hub(15.0, clock)
        self.session: int | None = 11
        self.last_session: int | None = 11
        self.stopping = False
        self.refusals: list[int] = []
        self.failure = "the reason"
        self.undone: list[int] = []  # tokens
        self.waiting: list[Any] = []
        self.pokes = 0

    def refused(self, session: int) -> None:
        self.refusals.append(session)

    def poke(self) -> None:
        self.pokes += 1

    def undo(self, token: int) -> None:
        self.undone.append(token)

    def when_session(self, signal: Any) -> None:
        self.waiting.append(signal)


class Take:
    """A take under way, and the world around it."""

    def __init__(self, clock: Clock, listener: Listener) -> None:
        self.clock = clock
        self.listener = listener
        self.stop = False
        self.core: Any = SimpleNamespace(
            settings=SimpleNamespace(poll=None, patience=10.0, call_timeout=15.0),
            cursors={name: ClaimCursor(clock) for name in IDS},
            queue_ids={},
            queue_ids_session=None,
        )
        self.flow: Flow[list[Taken]]
        self.step: Any = None
        self.result: list[Taken] | None = None

    def begin(self, *queues: str, n: int = 1, timeout: float | None = None) -> Any:
        names = queues or ("q",)
        listener: Any = self.listener
        self.flow = takes.take(self.core, listener, threading.Event, names, n, timeout, lambda: self.stop).run()
        return self._go(lambda: next(self.flow))

    def answer(self, value: Any = None) -> Any:
        return self._go(lambda: self.flow.send(value))

    def fail(self, error: BaseException) -> Any:
        return self._go(lambda: self.flow.throw(error))

    def _go(self, resume: Any) -> Any:
        try:
            self.step = resume()
        except StopIteration as done:
            self.step, self.result = None, done.value
        return self.step

    def arm(self) -> None:
        """Play the listener, then the last look that finds nothing: the take is asleep."""
        assert name(self.answer([])) == "queue_id"
        assert isinstance(self.answer(IDS), Wait)
        plan = self.listener.hub.plan()
        self.listener.hub.listening(plan.listen)
        self.listener.hub.armed(dict.fromkeys(plan.arm, True))
        assert self.step.signal.is_set()
        assert name(self.answer(True)) == "next_due"
        assert isinstance(self.answer({"q": None}), Wait)

    def neighbour(self, *queues: int) -> Waiter:
        """Another taker of the process, asleep."""
        other = Waiter(queues or (1,), threading.Event)
        self.listener.hub.enter(other)
        return other


def name(step: Any) -> str:
    """The SQL function that a step or a job calls; of a longer statement the first one."""
    call = step.call if isinstance(step, Run) else step
    if call.function is not None:
        return str(call.function)
    found = re.search(r"pgqueue\.(\w+)\(", call.sql)
    return found[1] if found else ""


def task(id: int = 7, queue: str = "q") -> Taken:
    return Taken(id, 99, 0, 0, None, "1", queue)


def token(step: Any) -> int:
    return int(next(arg for arg in step.call.args if isinstance(arg, int) and arg > 2**31))
