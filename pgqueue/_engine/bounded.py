"""Connections on which no statement waits for longer than `patience` seconds.

psycopg runs each statement as a generator that yields whenever it has to wait for the socket. A connection's `wait`
runs the generator, and looks at it at least ten times a second, for the sake of Ctrl-C. `_until` wraps the generator
and looks at the clock at these moments. So a deadline costs no system call, and no thread. An answer that is arriving
at the deadline has ARRIVING times as long, and no more: a broken server or proxy may send without end.

Other timeouts do not work. libpq has no timeout for a socket, and the kernel's timeouts (KEEPALIVES) end a connection
only if the other kernel is silent: the kernel of a pooler, a proxy or a stopped server still answers. A
statement_timeout on the server is of no use when the server's answer is lost, and a pooler refuses it.

A statement must not outlive its caller either: a claim that is committed later would take tasks without a taker.
So at the deadline, and when the caller is interrupted (Ctrl-C, a cancelled coroutine), the connection asks the server
to cancel the statement, and waits for the answer within the rest of the time, at most a second:

- the server cancelled it: the connection is usable, and the statement changed nothing;
- the answer came after all: the connection is usable, and the statement may have taken effect;
- silence: the connection is closed, and the statement may have taken effect.

An answer that came after the cancelling is not returned. A commit that waits for a synchronous standby answers a cancel
with success and a warning: the commit is not replicated, and a put that returned would be lost with the server.

psycopg does the same for an interrupt, but waits five seconds for each of the two steps, or without a limit in older
versions.
"""

from __future__ import annotations

import asyncio
import contextlib
from time import monotonic
from typing import Any, NoReturn, Self, TypeVar

import psycopg
from psycopg import capabilities
from psycopg.abc import PQGen, PQGenConn
from psycopg.waiting import wait, wait_async

from . import forks

T = TypeVar("T")
Row = tuple[Any, ...]

INTERVAL = 0.1  # seconds between two looks at the clock
ARRIVING = 3.0  # times the patience, while an answer keeps arriving
CANCELLING = (0.2, 1.0)  # the part of the patience that is kept for cancelling, and the longest, seconds
LONG = CANCELLING[1] / CANCELLING[0]
INTERRUPTS = (KeyboardInterrupt, asyncio.CancelledError)

#: For both ends of a TCP connection: the kernel gives up after 11 s without a sign of the other end.
KEEPALIVES: dict[str, int] = {
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10000,
}


class Late(psycopg.OperationalError):
    """The server has not answered in time."""


def _until(end: float, last: float, gen: PQGen[T]) -> PQGen[T]:
    """The generator, ended by Late when it is past `end` and nothing has arrived for INTERVAL, or past `last`."""
    try:
        wanted = next(gen)
        while True:
            ready = yield wanted
            wanted = gen.send(ready)
            if monotonic() >= (last if ready else end):
                raise Late
    except StopIteration as done:
        answer: T = done.value
        return answer


class BoundedConnection(psycopg.Connection[Row]):
    """`patience`: for how many seconds a statement may wait for its answer."""

    patience = float("inf")
    silent = False  # closed, since the server did not answer

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        forks.opened(self)

    @classmethod
    def _connect_gen(cls, *args: Any, **options: Any) -> PQGenConn[Self]:
        return forks.opening(super()._connect_gen(*args, **options))

    @classmethod
    def connect(cls, conninfo: str = "", **options: Any) -> Self:
        try:
            return super().connect(conninfo, **options)
        except psycopg.Error as error:  # it and psycopg's frame, which has the socket, refer to each other
            raise error.with_traceback(None) from None

    def wait(self, gen: PQGen[T], interval: float = INTERVAL, timeout: float | None = None) -> T:
        if timeout is not None:
            return super().wait(gen, interval, timeout)
        return self.wait_until(monotonic() + self.patience, gen)

    def wait_until(self, end: float, gen: PQGen[T]) -> T:
        """wait(), for less than the whole patience; `end`: as time.monotonic()."""
        try:
            return wait(_until(end - _spare(self), _last(self, end), gen), self.pgconn.socket, INTERVAL)
        except Late:
            self._late(gen, end)
        except INTERRUPTS:
            self.interrupted(gen)
            raise

    def interrupted(self, gen: PQGen[Any]) -> None:
        """Have the server cancel the statement whose answer `gen` awaits, if one is under way."""
        if _is_active(self):
            self._cancelled(gen, monotonic() + _spare(self))

    def _late(self, gen: PQGen[T], end: float) -> NoReturn:
        try:
            self._end(gen, end)
        except psycopg.errors.QueryCanceled as error:
            raise _no_answer(self, "the server cancelled it, and nothing was changed") from error
        except psycopg.OperationalError as error:
            _hang_up(self, gen)
            raise _no_answer(self, "it may have taken effect") from error
        raise _no_answer(self, "it may have taken effect")

    def _cancelled(self, gen: PQGen[T], end: float) -> None:
        try:
            self._end(gen, end)
        except psycopg.errors.QueryCanceled:
            pass
        except BaseException as error:
            _hang_up(self, gen)
            if not isinstance(error, Exception):  # interrupted again
                raise

    def _end(self, gen: PQGen[T], end: float) -> T:
        """Cancel the statement, and wait for its answer until `end`."""
        _refuse_to_cancel(self)
        self.cancel_safe(timeout=max(0.01, end - monotonic()))
        return wait(_until(end, end, gen), self.pgconn.socket, INTERVAL)


class BoundedAsyncConnection(psycopg.AsyncConnection[Row]):
    """As BoundedConnection."""

    patience = float("inf")
    silent = False

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        forks.opened(self)

    @classmethod
    def _connect_gen(cls, *args: Any, **options: Any) -> PQGenConn[Self]:
        return forks.opening(super()._connect_gen(*args, **options))

    @classmethod
    async def connect(cls, conninfo: str = "", **options: Any) -> Self:
        try:
            return await super().connect(conninfo, **options)
        except psycopg.Error as error:
            raise error.with_traceback(None) from None

    async def wait(self, gen: PQGen[T], interval: float = INTERVAL, timeout: float | None = None) -> T:
        if timeout is not None:
            return await super().wait(gen, interval, timeout)
        return await self.wait_until(monotonic() + self.patience, gen)

    async def wait_until(self, end: float, gen: PQGen[T]) -> T:
        """wait(), for less than the whole patience; `end`: as time.monotonic()."""
        try:
            return await wait_async(_until(end - _spare(self), _last(self, end), gen), self.pgconn.socket, INTERVAL)
        except Late:
            await self._late(gen, end)
        except INTERRUPTS:
            await self.interrupted(gen)
            raise

    async def interrupted(self, gen: PQGen[Any]) -> None:
        """Have the server cancel the statement whose answer `gen` awaits, if one is under way."""
        if _is_active(self):
            await self._cancelled(gen, monotonic() + _spare(self))

    async def _late(self, gen: PQGen[T], end: float) -> NoReturn:
        try:
            await self._end(gen, end)
        except psycopg.errors.QueryCanceled as error:
            raise _no_answer(self, "the server cancelled it, and nothing was changed") from error
        except psycopg.OperationalError as error:
            _hang_up(self, gen)
            raise _no_answer(self, "it may have taken effect") from error
        raise _no_answer(self, "it may have taken effect")

    async def _cancelled(self, gen: PQGen[T], end: float) -> None:
        try:
            await self._end(gen, end)
        except psycopg.errors.QueryCanceled:
            pass
        except BaseException as error:
            _hang_up(self, gen)
            if not isinstance(error, Exception):
                raise

    async def _end(self, gen: PQGen[T], end: float) -> T:
        _refuse_to_cancel(self)
        await self.cancel_safe(timeout=max(0.01, end - monotonic()))
        return await wait_async(_until(end, end, gen), self.pgconn.socket, INTERVAL)


Bounded = BoundedConnection | BoundedAsyncConnection


def _spare(conn: Bounded) -> float:
    """The part of the patience that is kept for cancelling, seconds."""
    return CANCELLING[1] if conn.patience > LONG else conn.patience * CANCELLING[0]


def _last(conn: Bounded, end: float) -> float:
    """Until when an answer may keep arriving that was to be there at `end`."""
    return end + (ARRIVING - 1) * conn.patience


def _is_active(conn: Bounded) -> bool:
    return conn.pgconn.transaction_status == psycopg.pq.TransactionStatus.ACTIVE


def _hang_up(conn: Bounded, gen: PQGen[Any]) -> None:
    """Close the connection, and the generator: at its end that of a pipeline sends once more, which fails here.

    If nothing closed it, Python would do so, and write the error to stderr.
    """
    conn.silent = True
    conn.pgconn.finish()
    with contextlib.suppress(psycopg.Error):
        gen.close()


def _refuse_to_cancel(conn: Bounded) -> None:
    """Raise Late where cancelling would not help: before libpq 17 it blocks; in a pipeline more answers are to come."""
    if not capabilities.has_cancel_safe() or conn.pgconn.pipeline_status != psycopg.pq.PipelineStatus.OFF:
        raise Late


def _no_answer(conn: Bounded, effect: str) -> Late:
    return Late(f"no answer for {conn.patience:.3g} s, until the end of the call's call_timeout: {effect}")
