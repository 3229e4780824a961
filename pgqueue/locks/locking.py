"""lock, try_lock and elect, as ZooKeeper's recipes. Both shells."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable
from typing import Any, Self

from .. import arguments
from ..base import mirrors
from ..errors import LockLost, LockTimeout
from ..flows import Flow
from ..shell import AsyncShell, LoopSignal, Shell
from .electing import AsyncElection, Election
from .holding import Request, callback, lock_name

log = logging.getLogger("pgqueue")
OnLost = Callable[[Any], Any]


class _Named:
    """What a lock is in both shells. One object is one hold at a time."""

    def __init__(self, name: str, timeout: float | None, shared: bool, on_lost: OnLost | None) -> None:
        self.name = name
        self._timeout = timeout
        self._shared = shared
        self._on_lost = on_lost
        self._request: Request | None = None
        self._asking = False
        self._given = False  # by try_lock: held already when the block is entered

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, {'held' if self.held else 'not held'})"

    @property
    def fence(self) -> int:
        """A number that is higher than that of every earlier grant of any lock; 0 before the first grant."""
        return self._request.fence if self._request else 0

    @property
    def held(self) -> bool:
        """Whether it is held, as far as this process knows. Asks nothing."""
        return self._request is not None and self._request.held

    def _begin(self) -> bool:
        """False if it need not be asked for."""
        given, self._given = self._given, False
        if not given and (self._asking or self.held):
            raise RuntimeError(f"this object holds or awaits the lock {self.name!r}: make one for each with block")
        self._asking = not given
        return not given

    def _tell(self) -> None:
        try:
            if self._on_lost is not None:
                self._on_lost(self)
        except Exception:
            log.exception("on_lost of the lock %r failed", self.name)

    def _too_late(self) -> LockTimeout:
        return LockTimeout(f"the lock {self.name!r} could not be had within {self._timeout} s: see pgqueue.locks")

    def _checked(self) -> Flow[None]:
        if self._request is None:
            raise RuntimeError(f"the lock {self.name!r} was never held by this object")
        return self._request.check()


class Lock(_Named):
    """A lock, from Client.lock() or try_lock(). Held between the beginning and the end of a `with` block.

    Leaving the block raises LockLost if the lock was lost meanwhile, unless an exception is on its way already.

    Attributes:
        name: its name.
    """

    def __init__(self, client: Locking, name: str, timeout: float | None, shared: bool, on_lost: OnLost | None) -> None:
        super().__init__(name, timeout, shared, on_lost)
        self._client = client

    def check(self) -> None:
        """Ask the server whether the connection that holds it is still there. Raises LockLost if it is not held."""
        self._client._drive(self._checked())

    def release(self) -> None:
        """Release it before the end of the block. Does nothing if that was done.

        Raises:
            LockLost: it was lost before; once.
        """
        if self._request is not None:
            self._client._drive(self._request.release())

    def __enter__(self) -> Self:
        if self._begin() and not self._acquire():
            raise self._too_late()
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        try:
            self.release()
        except LockLost:
            if kind is None:
                raise

    def _acquire(self) -> bool:
        try:
            client = self._client
            request = Request(client._listener(), threading.Event, self.name, self._shared, self._tell)
            granted = client._drive(request.acquire(self._timeout, client._core.settings.connect_timeout))
            self._request = request if granted else None
            return granted
        finally:
            self._asking = False


@mirrors(Lock)
class AsyncLock(_Named):
    def __init__(
        self, client: AsyncLocking, name: str, timeout: float | None, shared: bool, on_lost: OnLost | None
    ) -> None:
        super().__init__(name, timeout, shared, on_lost)
        self._client = client

    async def check(self) -> None:
        await self._client._drive(self._checked())

    async def release(self) -> None:
        if self._request is not None:
            await self._client._drive(self._request.release())

    async def __aenter__(self) -> Self:
        if self._begin() and not await self._acquire():
            raise self._too_late()
        return self

    async def __aexit__(self, kind: object, error: object, trace: object) -> None:
        try:
            await self.release()
        except LockLost:
            if kind is None:
                raise

    async def _acquire(self) -> bool:
        loop = asyncio.get_running_loop()

        def tell() -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(self._tell)

        try:
            client = self._client
            request = Request(await client._listener(), LoopSignal, self.name, self._shared, tell)
            granted = await client._drive(request.acquire(self._timeout, client._core.settings.connect_timeout))
            self._request = request if granted else None
            return granted
        finally:
            self._asking = False


class Locking(Shell):
    def lock(
        self, name: str, timeout: float | None = None, *, shared: bool = False, on_lost: OnLost | None = None
    ) -> Lock:
        """A lock to hold during a `with` block. Granted in the order in which it was asked for, as ZooKeeper's recipe.

        It is held by this client's listener connection. If that ends, the server frees the lock at once: by the death
        of the process within milliseconds. It is not re-entrant: the same client waits for itself.

        Args:
            name: 1 to 200 characters.
            timeout: seconds to wait for it when the block is entered; 0 tries once, None waits for ever.
            shared: together with others who share; nobody passes one who waits for it alone.
            on_lost: called with the lock, once, if its connection breaks while it is held; not when the client is
                closed. It runs in the listener's thread, for asyncio in the event loop, and must return soon.

        Returns:
            The lock, to enter. Entering raises LockTimeout if it was not granted in time, ServerError if the server
            could not be reached, and ClosedError if the client is closed.

        Raises:
            ValueError: an argument cannot be.
        """
        return Lock(self, lock_name(name), arguments.timeout(timeout), *_checked(shared, on_lost))

    def try_lock(self, name: str, *, shared: bool = False, on_lost: OnLost | None = None) -> Lock | None:
        """Take a lock if it is free and nobody waits for it; does not wait. Arguments as for lock().

        Returns:
            The lock, held until release(), or until the end of a `with` block over it; or None.

        Raises:
            ServerError, ClosedError: as for entering a lock().
            ValueError: an argument cannot be.
        """
        lock = Lock(self, lock_name(name), 0.0, *_checked(shared, on_lost))
        lock._given = lock._acquire()
        return lock if lock._given else None

    def elect(self, name: str, gained: OnLost | None = None, lost: OnLost | None = None) -> Election:
        """Campaign in the background for being the one leader under a name, again and again until close().

        The leader is who holds the lock of this name, so lock() and elections of one name exclude each other.

        Args:
            name: as for lock().
            gained: called with the election when this one becomes leader. For asyncio it may be a coroutine function.
            lost: called with the election when it is leader no more: the connection broke, it resigned, or it was
                closed. In the latter two cases the next leader begins after it has returned.

        Both run in the campaign's own thread or task, one after the other, and should return soon. An exception in
        them is logged and changes nothing; so is whatever goes wrong with the server, and the campaign goes on.

        Raises:
            ValueError: an argument cannot be.
        """
        name = lock_name(name)
        return Election(self, name, callback("gained", gained), callback("lost", lost))


@mirrors(Locking)
class AsyncLocking(AsyncShell):
    def lock(
        self, name: str, timeout: float | None = None, *, shared: bool = False, on_lost: OnLost | None = None
    ) -> AsyncLock:
        return AsyncLock(self, lock_name(name), arguments.timeout(timeout), *_checked(shared, on_lost))

    async def try_lock(self, name: str, *, shared: bool = False, on_lost: OnLost | None = None) -> AsyncLock | None:
        lock = AsyncLock(self, lock_name(name), 0.0, *_checked(shared, on_lost))
        lock._given = await lock._acquire()
        return lock if lock._given else None

    def elect(self, name: str, gained: OnLost | None = None, lost: OnLost | None = None) -> AsyncElection:
        name = lock_name(name)
        return AsyncElection(self, name, callback("gained", gained), callback("lost", lost))


def _checked(shared: bool, on_lost: OnLost | None) -> tuple[bool, OnLost | None]:
    if not isinstance(shared, bool):
        raise ValueError(f"shared must be True or False, not {shared!r}")
    return shared, callback("on_lost", on_lost)
