"""Elections: campaigns for a lock in the background, one term of leadership after another. Both shells.

    in line --granted--> gained() ... lost, resigned or closed ... lost() --> release, if it is still ours --> in line

A blocking client's campaign is a daemon thread, an asyncio client's a task. Callbacks run in it, one at a time and in
this order. `leader` is false as soon as the term is over; what the leader has to wind down belongs in lost(), since
the lock of one who resigns is released behind it.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import threading
from collections.abc import Callable
from typing import Any, Self

from .. import arguments
from ..base import mirrors
from ..errors import ClosedError, LockLost
from ..shell import AsyncShell, LoopSignal, Shell
from .holding import Request, Stopped

log = logging.getLogger("pgqueue")
Callback = Callable[[Any], Any]

PAUSE = 1.0  # seconds after an error that nobody expected, as missing rights


class _Campaign:
    """What an election is in both shells."""

    def __init__(self, name: str, gained: Callback | None, lost: Callback | None) -> None:
        self.name = name
        self._gained = gained
        self._lost = lost
        self._request: Request | None = None
        self._closed = False

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, {'leader' if self.leader else 'not the leader'})"

    @property
    def leader(self) -> bool:
        """Whether this one is the leader, as far as this process knows."""
        request = self._request
        return request is not None and request.held and not request.stopped

    @property
    def fence(self) -> int:
        """The fence of the lock, as Lock.fence; 0 while not in line or not yet the leader."""
        request = self._request
        return request.fence if request else 0

    def _erred(self) -> None:
        log.exception("the election %r goes on after an error", self.name)

    def _failed(self, callback: Callback | None) -> None:
        log.exception("%s of the election %r failed", getattr(callback, "__name__", callback), self.name)

    def _not_yet(self, timeout: float | None) -> Exception:
        if self._closed:
            return ClosedError(f"the election {self.name!r} is closed")
        return TimeoutError(f"the election {self.name!r} was not won within {timeout} s")


class Election(_Campaign):
    """A campaign for being the one leader under a name, from Client.elect(). Closed at the end of a `with` block.

    Attributes:
        name: its name.
    """

    def __init__(self, client: Shell, name: str, gained: Callback | None, lost: Callback | None) -> None:
        super().__init__(name, gained, lost)
        self._client = client
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._campaign, name=f"pgqueue-election-{name}", daemon=True)
        self._thread.start()

    def wait(self, timeout: float | None = None) -> None:
        """Wait until this one is the leader.

        Args:
            timeout: seconds; None waits for ever.

        Raises:
            TimeoutError: it was not, in time.
            ClosedError: the election or the client is closed.
        """
        timeout = arguments.timeout(timeout)
        self._wait_until(lambda: self.leader or self._closed, timeout)
        if not self.leader:
            raise self._not_yet(timeout)

    def resign(self) -> None:
        """Give up the leadership, and go to the end of the line. Does nothing if this one is not the leader.

        Returns when the lock is released, hence after lost(); in a callback at once, before that.
        """
        request = self._request
        if request is not None and self.leader:
            request.stop()
            if self._thread is not threading.current_thread():
                self._wait_until(lambda: self._request is not request)

    def close(self) -> None:
        """Resign, and campaign no more. May be called twice."""
        with self._changed:
            self._closed = True
            if self._request is not None:
                self._request.stop()
            self._changed.notify_all()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _campaign(self) -> None:
        while not self._closed:
            try:
                self._serve(Request(self._client._listener(), threading.Event, self.name))
            except (Stopped, ClosedError):
                break
            except Exception:
                self._erred()
                self._wait_until(lambda: self._closed, PAUSE)
        self._closed = True
        self._set(None)

    def _serve(self, request: Request) -> None:
        """Wait to be elected, and lead for one term."""
        self._set(request)
        try:
            self._client._drive(request.acquire(None, 0))
            self._set(request)
            self._call(self._gained)
            self._client._drive(request.until_over())
            self._call(self._lost)
            with contextlib.suppress(LockLost):
                self._client._drive(request.release())
        finally:
            request.withdraw()

    def _set(self, request: Request | None) -> None:
        with self._changed:
            self._request = request
            if request is not None and self._closed:
                request.stop()
            self._changed.notify_all()

    def _wait_until(self, condition: Callable[[], bool], timeout: float | None = None) -> None:
        with self._changed:
            self._changed.wait_for(condition, timeout)

    def _call(self, callback: Callback | None) -> None:
        try:
            if callback is not None:
                callback(self)
        except Exception:
            self._failed(callback)


@mirrors(Election)
class AsyncElection(_Campaign):
    def __init__(self, client: AsyncShell, name: str, gained: Callback | None, lost: Callback | None) -> None:
        super().__init__(name, gained, lost)
        self._client = client
        self._changed = asyncio.Event()  # replaced whenever it is set
        self._task = asyncio.create_task(self._campaign(), name=f"pgqueue-election-{name}")

    async def wait(self, timeout: float | None = None) -> None:
        timeout = arguments.timeout(timeout)
        await self._wait_until(lambda: self.leader or self._closed, timeout)
        if not self.leader:
            raise self._not_yet(timeout)

    async def resign(self) -> None:
        request = self._request
        if request is not None and self.leader:
            request.stop()
            if self._task is not asyncio.current_task():
                await self._wait_until(lambda: self._request is not request)

    async def close(self) -> None:
        self._closed = True
        if self._request is not None:
            self._request.stop()
        self._notify()
        if self._task is not asyncio.current_task():
            await asyncio.wait([self._task])

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    async def _campaign(self) -> None:
        try:
            while not self._closed:
                try:
                    await self._serve(Request(await self._client._listener(), LoopSignal, self.name))
                except (Stopped, ClosedError):
                    break
                except Exception:
                    self._erred()
                    await self._wait_until(lambda: self._closed, PAUSE)
        finally:
            self._closed = True
            self._set(None)

    async def _serve(self, request: Request) -> None:
        self._set(request)
        try:
            await self._client._drive(request.acquire(None, 0))
            self._set(request)
            await self._call(self._gained)
            await self._client._drive(request.until_over())
            await self._call(self._lost)
            with contextlib.suppress(LockLost):
                await self._client._drive(request.release())
        finally:
            request.withdraw()

    def _set(self, request: Request | None) -> None:
        self._request = request
        if request is not None and self._closed:
            request.stop()
        self._notify()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _wait_until(self, condition: Callable[[], bool], timeout: float | None = None) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                while not condition():
                    await self._changed.wait()

    async def _call(self, callback: Callback | None) -> None:
        try:
            answer = callback(self) if callback is not None else None
            if inspect.isawaitable(answer):
                await answer
        except Exception:
            self._failed(callback)
