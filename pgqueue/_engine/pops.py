"""A pop that waits: a take with a statement that also acks, as a flow for both shells.

A task is popped at most once, and nothing can be undone. So a pop differs from a take in two points:

- Its commit is durable. A take that a crash of the server forgets is repeated. If a pop were forgotten like this, the
  task would be returned twice.
- If the answer to a pop is lost, the pop may have removed tasks. It ends with that error, where a take goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .._calls.call import Call
from .._calls.pop import pop_next
from .._calls.take import Taken
from ..errors import ConnectionLost
from .core import Core
from .cursor import Position
from .listener import Listener
from .steps import Flow, Signal
from .takes import Take


def pop(
    core: Core,
    listener: Listener,
    make_signal: Callable[[], Signal],
    queues: Sequence[str],
    n: int,
    timeout: float | None,
) -> Flow[list[Taken]]:
    """Up to n tasks, taken and acked, as soon as there is one. None after `timeout` seconds, or when the client closes.

    Raises:
        ConnectionLost: whether tasks were popped is unknown.
    """
    return _Pop(core, listener, make_signal, tuple(queues), n, timeout, lambda: False).run()


class _Pop(Take):
    relaxed = False
    _unknown: ConnectionLost | None = None

    def _call(self, session: int, starts: list[Position | None]) -> Call[list[Taken]]:
        return pop_next(self._queues, self._n, session)

    def _attempt(self, starts: list[Position | None]) -> Flow[list[Taken]]:
        if self._unknown is not None:
            raise self._unknown
        return (yield from super()._attempt(starts))

    def _lost(self, error: ConnectionLost) -> None:
        self._unknown = error  # a take that goes to sleep passes over the error: the next attempt raises it again
        raise error
