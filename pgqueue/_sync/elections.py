# Generated from pgqueue/_async/elections.py by tools/blocking.py: edit that file, not this one.

"""Elections: campaigns for a lock in the background. See _engine/elections.py for their states."""

from __future__ import annotations

import contextlib
from typing import Self

from .._engine.blocking import Background, Condition, Signal, settle
from .._engine.elections import Callback, Campaign
from .._engine.locks import Request, Stopped
from .._values import arguments
from .._values.arguments import Seconds
from ..errors import ClosedError, LockLost
from .shell import Shell


class Election(Campaign):
    """A campaign for being the one leader under a name, from Client.elect(). A `with` block closes it at its end.

    Attributes:
        name: its name.
    """

    def __init__(self, shell: Shell, name: str, gained: Callback | None, lost: Callback | None) -> None:
        super().__init__(name, gained, lost)
        self._shell = shell
        self._changed = Condition()
        self._background = Background(f"pgqueue-election-{name}", self._campaign, lambda: self._closed)

    def wait(self, timeout: Seconds | None = None) -> None:
        """Wait until this client is the leader.

        Args:
            timeout: seconds to wait, or a timedelta; None waits without limit, 0 does not wait.

        Raises:
            TimeoutError: this client did not become the leader in time.
            ClosedError: the election or the client is closed.
        """
        seconds = arguments.timeout(timeout)
        self._changed.wait_for(lambda: self.leader or self._closed, seconds)
        if not self.leader:
            raise self._not_yet(seconds)

    def resign(self) -> None:
        """Give up the leadership, and move to the end of the line. Does nothing if this client is not the leader.

        Returns when the lock is released, hence after lost(); in a callback at once, before that.
        """
        request = self._request
        if request is not None and self.leader:
            request.stop()
            if not self._background.is_current():
                self._changed.wait_for(lambda: self._request is not request)

    def close(self) -> None:
        """Resign, and end the campaign. May be called twice."""
        with self._changed:
            self._closed = True
            if self._request is not None:
                self._request.stop()
            self._changed.notify_all()
        if not self._background.is_current():
            self._background.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _campaign(self) -> None:
        try:
            while not self._closed:
                self._serve(Request(self._shell.listener(), Signal, self.name))
        except (Stopped, ClosedError):
            self._closed = True
        finally:
            self._set(None)

    def _serve(self, request: Request) -> None:
        """Wait to be elected, and lead for one term."""
        self._set(request)
        try:
            self._shell.drive(request.acquire(None, 0))
            self._set(request)
            self._call(self._gained)
            self._shell.drive(request.until_over())
            self._call(self._lost)
            with contextlib.suppress(LockLost):
                self._shell.drive(request.release())
        finally:
            request.withdraw()

    def _set(self, request: Request | None) -> None:
        with self._changed:
            self._request = request
            if request is not None and self._closed:
                request.stop()
            self._changed.notify_all()

    def _call(self, callback: Callback | None) -> None:
        try:
            if callback is not None:
                settle(callback(self))
        except Exception:
            self._failed(callback)
