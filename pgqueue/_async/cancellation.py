"""Whether a task that this client has taken was cancelled."""

from __future__ import annotations

from .._engine.awaiting import Signal
from .._engine.cancels import Watched
from .._values import arguments
from .._values.arguments import Seconds


class AsyncCancellation:
    """True once the task was cancelled: `if task.cancelled: ...`. From Task.cancelled."""

    def __init__(self, watched: Watched) -> None:
        self._watched = watched

    def __bool__(self) -> bool:
        return self._watched.is_set

    def is_set(self) -> bool:
        """Whether the task was cancelled, as bool()."""
        return self._watched.is_set

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of task {self._watched.id}: {self._watched.is_set}>"

    @property
    def reason(self) -> str | None:
        """The reason that the caller of cancel() gave; None without one, or if the task is not cancelled."""
        return self._watched.reason

    async def wait(self, timeout: Seconds | None = None) -> bool:
        """Wait until the task is cancelled.

        Args:
            timeout: seconds to wait, or a timedelta; None waits without limit, 0 does not wait.

        Returns:
            Whether it is cancelled; False after the timeout.

        Raises:
            ValueError: the timeout is not a duration.
        """
        seconds, signal = arguments.timeout(timeout), Signal()
        self._watched.when(signal)
        try:
            return await signal.wait(seconds)
        finally:
            self._watched.forget(signal)
