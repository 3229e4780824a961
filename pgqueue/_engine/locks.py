"""One request for a lock, from asking to the end: its state, and the flows that both shells drive.

Theory of operation
-------------------
The lock belongs to the listener's connection (sql/6_families/locks.sql), so all calls here run on that connection.

    asking --granted--> held --release--> over
       '-- time over,     '-- connection broke, client closed --> lost
           cut off --> withdrawn

- The client chooses the token, so it can repeat a request, and undo it before its answer is known. It asks for
  drop_lock on the same connection, behind the request: `later` could overtake the request. If the connection broke, the
  server freed the lock, but may keep the ticket, since the session may return: then drop_lock runs again, by `later`,
  on the next connection.
- A grant counts only if the connection did not break since the request was sent. The listener's thread reports the
  break by `on_lost`, possibly before the waiting thread has read the answer. In doubt the flow asks the server again.
- In a forked child the listener is `stopping`. The child checks that first, since the parent may have held a mutex at
  the fork, and in the child nothing would release it.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from .._calls import locks as calls
from .._calls.call import Call, Rows
from .._values import arguments
from ..errors import CallTimeout, ClosedError, ConnectionLost, LockLost
from . import waits
from .door import without_session
from .listener import Listener
from .steps import Flow, Signal, Wait
from .switchboard import Ear
from .waits import MakeSignal, TimeLeft

T = TypeVar("T")
POLL = (0.05, 1.0)  # seconds between looks: of the first in line, for a holder that died, and the maximum for others


class Stopped(Exception):
    """Internal: stop() ended the wait for a lock."""


class Drop:
    """Calls drop_lock until it takes effect. Sets `done` after the first attempt; `held` is None if that failed."""

    def __init__(self, listener: Listener, token: int, done: Signal | None = None) -> None:
        self.held: bool | None = None
        self._listener = listener
        self._done = done
        self._call = calls.drop_lock(token)
        listener.ask(self._call.reading(self._read), self)

    def set(self) -> None:
        if self.held is None and not self._listener.stopping:
            self._listener.later(self._call)
        if self._done is not None:
            self._done.set()

    def is_set(self) -> bool:
        return self.held is not None

    def _read(self, rows: Rows) -> bool:
        self.held = self._call.read(rows)
        return self.held


class Request:
    """`on_lost` is called once, in the listener's thread, if the connection breaks while the lock is held."""

    def __init__(
        self,
        listener: Listener,
        make_signal: MakeSignal,
        name: str,
        shared: bool = False,
        on_lost: Callable[[], None] = lambda: None,
    ) -> None:
        self.name = name
        self.fence = 0
        self.stopped = False
        self._listener = listener
        self._make_signal = make_signal
        self._shared = shared
        self._on_lost = on_lost
        self._token = secrets.randbits(63)
        self._channel = ""
        self._mutex = threading.Lock()
        self._signal: Signal | None = None  # of the last wait
        self._broke = False  # whether the connection broke since the last call was sent
        self._held = False
        self._lost = False
        self._over = False  # released, or its loss was reported

    @property
    def held(self) -> bool:
        return self._held and not self._listener.stopping

    def stop(self) -> None:
        """End the wait that is under way, and any later one. A lock that is held stays held until release()."""
        with self._mutex:
            self.stopped = True
            self._wake()

    def withdraw(self) -> None:
        """Undo the request in any state, without waiting for the server. Does nothing once the request is over."""
        if self._listener.stopping or self._over:
            return
        self._over, self._held = True, False
        self._forget()
        Drop(self._listener, self._token)

    # --- flows

    def acquire(self, timeout: float | None, connect_timeout: float) -> Flow[bool]:
        """Whether the lock was granted in time.

        Raises:
            ServerError: the server could not be reached for longer than both timeouts.
            ClosedError: the client is closed.
            Stopped: stop() was called.
        """
        board = self._listener.switchboard
        left = TimeLeft(timeout)
        patience = TimeLeft(None if timeout is None else max(timeout, connect_timeout))
        ear: Ear | None = None
        self._listener.on_lost.append(self._connection_broke)
        try:
            while True:
                yield from self._session(patience)
                last = left.over()
                if ear is not None:
                    board.forget(ear)  # before the look: a call that arrives after the look counts
                try:
                    answer = yield from self._ask(calls.ask_lock(self.name, self._shared, self._token, not last))
                except ConnectionLost as error:
                    if isinstance(error, CallTimeout) and left.over():
                        raise
                    continue
                if answer.fence is not None:
                    if self._granted(answer):
                        return True
                elif last:
                    self._over = True
                    self._forget()
                    return False
                elif ear is None or ear.channel != answer.channel:  # a new session has a new channel
                    if ear is not None:
                        board.leave(ear)
                    ear = Ear(answer.channel, self._make)
                    yield from waits.enter(self._listener, ear, left)
                else:
                    pause = min(POLL[0] * (answer.ahead + 1), POLL[1])
                    yield from self._called(ear, left.at_most(pause))
        except BaseException:
            self.withdraw()
            raise
        finally:
            if ear is not None:
                board.leave(ear)

    def release(self) -> Flow[None]:
        """Release the lock. Does nothing the second time. Raises LockLost, once, if the lock was lost before."""
        if self._listener.stopping:
            over, self._over = self._over, True
            if over:
                return
            raise self._loss()
        with self._mutex:
            over, self._over = self._over, True
            held, self._held = self._held, False
            self._wake()
        if over:
            return
        self._forget()
        done = self._make_signal()
        drop = Drop(self._listener, self._token, done)
        if held:
            yield Wait(done, waits.finite(self._listener.call_timeout))
        if not (held and drop.held):
            self._lost = True
            raise self._loss()

    def check(self) -> Flow[None]:
        """Ask the server whether the lock is held. Raises LockLost."""
        if self.held:
            with contextlib.suppress(ClosedError):
                try:
                    yield from waits.ask(self._listener, self._make_signal, calls.ping())
                except ConnectionLost as error:
                    raise self._loss() from error
        if not self.held:
            raise self._loss()

    def until_over(self) -> Flow[None]:
        """Wait until the lock is lost or released, the client closed, or stop() called."""
        board = self._listener.switchboard
        ear = Ear(self._channel, self._make_signal)
        board.enter(ear)
        try:
            while self.held and not self.stopped:
                signal = self._make_signal()
                with self._mutex:
                    self._signal = signal
                board.await_next(ear, signal)  # set when the client closes, too
                if self.held and not self.stopped:
                    yield Wait(signal, None)
                board.forget(ear)
        finally:
            board.leave(ear)

    # --- steps

    def _session(self, patience: TimeLeft) -> Flow[None]:
        while self._listener.session is None and not self._listener.stopping:
            if patience.over():
                raise without_session(f"the lock {self.name!r} cannot be requested", self._listener.failure)
            signal = self._make()
            self._listener.when_session(signal)
            yield Wait(signal, patience.seconds())

    def _ask(self, call: Call[T]) -> Flow[T]:
        self._broke = False
        try:
            answer = yield from waits.ask(self._listener, self._make, call)
        except BaseException:
            if self.stopped:
                raise Stopped from None
            raise
        if self.stopped:
            raise Stopped
        return answer

    def _called(self, ear: Ear, left: TimeLeft) -> Flow[None]:
        """Wait until the server calls this request, or the connection was lost and is back, or the time is over."""
        while isinstance(heard := (yield from waits.next_payload(self._listener, self._make, ear, left)), str):
            if heard == str(self._token):
                return

    # --- state

    def _make(self) -> Signal:
        """A signal that stop() sets. Raises Stopped after stop()."""
        signal = self._make_signal()
        with self._mutex:
            if self.stopped:
                raise Stopped
            self._signal = signal
        return signal

    def _wake(self) -> None:
        if self._signal is not None:
            self._signal.set()

    def _granted(self, answer: calls.Answer) -> bool:
        with self._mutex:
            self.fence = answer.fence or 0
            self._channel = answer.channel
            self._held = not self._broke
            return self._held

    def _connection_broke(self) -> None:
        with self._mutex:
            self._broke = True
            if not self._held:
                return
            self._held, self._lost = False, True
            self._wake()
        self._forget()
        self._on_lost()

    def _forget(self) -> None:
        with contextlib.suppress(ValueError):
            self._listener.on_lost.remove(self._connection_broke)

    def _loss(self) -> LockLost:
        if self._listener.stopping:
            why = "the client was closed, or this is a forked process"
        elif self._lost or self._held:
            why = "the connection that held it broke, and the server granted it to the next request"
        else:
            why = "it was released"
        return LockLost(f"the lock {self.name!r} is not held: {why}")


def lock_name(value: object) -> str:
    """A lock's name: 1 to 200 characters, none of them NUL. Raises ValueError."""
    if not isinstance(value, str):
        raise ValueError(f"a lock's name is a string, not {value!r}")
    if not 1 <= len(value) <= 200:
        raise ValueError(f"a lock's name has 1 to 200 characters, this one has {len(value)}")
    return arguments.text(value, "a lock's name")


def callback(name: str, value: Callable[[Any], Any] | None) -> Callable[[Any], Any] | None:
    """A callable or None. Raises ValueError."""
    if value is not None and not callable(value):
        raise ValueError(f"{name} must be a function or None, not {value!r}")
    return value
