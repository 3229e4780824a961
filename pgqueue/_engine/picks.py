"""A take of a task by its id, for both shells."""

from __future__ import annotations

from collections.abc import Callable

from .._calls import take as calls
from .._calls.call import Call
from .._calls.take import Taken
from .core import Core
from .cursor import Position
from .listener import Listener
from .steps import Signal
from .takes import Take


def take_id(core: Core, listener: Listener, make_signal: Callable[[], Signal], id: int) -> Take:
    """Take the task of this id, returned as a list of one. It waits for the server only."""
    return _TakeId(core, listener, make_signal, id)


class _TakeId(Take):
    """A take of a task by its id: one claim without a queue, which raises an error if the task cannot be taken."""

    def __init__(self, core: Core, listener: Listener, make_signal: Callable[[], Signal], id: int) -> None:
        super().__init__(core, listener, make_signal, (), 1, 0.0, lambda: False)
        self._id = id

    def _call(self, session: int, starts: list[Position | None]) -> Call[list[Taken]]:
        self._used_session = session
        return calls.take_id(self._id, session, self._token, self._core.label)
