# Generated from pgqueue/_async/locks.py by tools/blocking.py: edit that file, not this one.

"""lock, try_lock and elect, as ZooKeeper's recipes."""

from __future__ import annotations

from typing import Self

from .._engine.blocking import Signal, relay
from .._engine.lock_state import LockState, OnLost, checked_callbacks
from .._engine.locks import Request, callback, lock_name
from .._values import arguments
from .._values.arguments import Seconds
from ..errors import LockLost
from .elections import Election
from .shell import Shell


class Lock(LockState):
    """A lock, from Client.lock() or try_lock(). Held between the beginning and the end of a `with` block.

    Leaving the block raises LockLost if the lock was lost in the meantime, unless another exception is under way.

    Attributes:
        name: its name.
    """

    def __init__(self, shell: Shell, name: str, timeout: float | None, shared: bool, on_lost: OnLost | None) -> None:
        super().__init__(name, timeout, shared, on_lost)
        self._shell = shell

    def check(self) -> None:
        """Ask the server whether the connection that holds it is still there. Raises LockLost if it is not held."""
        self._shell.drive(self._checked())

    def release(self) -> None:
        """Release it before the end of the block. Does nothing if that was done.

        Raises:
            LockLost: it was lost before; raised once.
        """
        if self._request is not None:
            self._shell.drive(self._request.release())

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

    def _try(self) -> bool:
        """Take it before the block is entered, if it is granted in time; the block then does not ask again."""
        self._given = self._acquire()
        return self._given

    def _acquire(self) -> bool:
        try:
            shell = self._shell
            request = Request(shell.listener(), Signal, self.name, self._shared, relay(self._tell))
            granted = shell.drive(request.acquire(self._timeout, shell.settings.patience))
            self._request = request if granted else None
            return granted
        finally:
            self._asking = False


class Locking:
    """The verbs of a client for locks and elections."""

    shell: Shell

    def lock(
        self, name: str, timeout: Seconds | None = None, *, shared: bool = False, on_lost: OnLost | None = None
    ) -> Lock:
        """A lock to hold during a `with` block. Granted in the order of the requests, as in ZooKeeper's recipe.

        It is held by this client's listener connection. If that connection ends, the server frees the lock at once: by
        the death of the process within milliseconds. It is not re-entrant: a client that asks twice waits for itself.

        Args:
            name: 1 to 200 characters.
            timeout: seconds to wait for it when the block is entered, or a timedelta; None waits without limit, 0 tries
                once.
            shared: share it with other shared locks. A request for the lock alone is not overtaken by them.
            on_lost: called with the lock, once, if its connection breaks while it is held; not when the client is
                closed. It runs in the listener's thread, for asyncio in the event loop, and must return soon.

        Returns:
            The lock, to enter. Entering raises LockTimeout if it was not granted in time, ServerError if the server
            could not be reached, and ClosedError if the client is closed.

        Raises:
            ValueError: an argument is not valid.
        """
        return Lock(self.shell, lock_name(name), arguments.timeout(timeout), *checked_callbacks(shared, on_lost))

    def try_lock(self, name: str, *, shared: bool = False, on_lost: OnLost | None = None) -> Lock | None:
        """Take a lock if it is free and no client waits for it; does not wait. Arguments as for lock().

        Returns:
            The lock, held until release(), or until the end of a `with` block over it; or None.

        Raises:
            ServerError, ClosedError: as for entering a lock().
            ValueError: an argument is not valid.
        """
        lock = Lock(self.shell, lock_name(name), 0.0, *checked_callbacks(shared, on_lost))
        return lock if lock._try() else None

    def elect(self, name: str, gained: OnLost | None = None, lost: OnLost | None = None) -> Election:
        """Campaign in the background for being the one leader under a name, term after term until close().

        The leader holds the lock of this name, so lock() and elections of one name exclude each other.

        Args:
            name: as for lock().
            gained: called with the election when this client becomes leader. For asyncio it may be a coroutine
                function.
            lost: called with the election when it is no longer the leader: the connection broke, it resigned, or it was
                closed. In the latter two cases the next leader begins after this callback has returned.

        Both run in the campaign's own thread or task, one after the other, and should return soon. An exception in
        them is logged and changes nothing; so is an error of the server, and the campaign goes on.

        Raises:
            ValueError: an argument is not valid.
        """
        name = lock_name(name)
        return Election(self.shell, name, callback("gained", gained), callback("lost", lost))
