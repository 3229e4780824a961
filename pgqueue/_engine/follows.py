"""A wait on several named channels at once: flows, for both shells.

The order is that of waits.py: enter the switchboard, wait until every LISTEN is committed, and only then look. Each ear
has a function in place of a buffer (switchboard.py), which notes its channel. So the waiter learns which channels to
look at, and a thousand channels cost it one signal.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from ..errors import ClosedError
from .listener import Listener
from .steps import Flow, Wait
from .switchboard import Ear, Gap
from .waits import MakeSignal, TimeLeft


class Several:
    """The ears of one waiter. The caller calls close()."""

    def __init__(self, listener: Listener, make_signal: MakeSignal, channels: Iterable[str]) -> None:
        self._listener = listener
        self._board = listener.switchboard
        self._make_signal = make_signal
        self._signal = make_signal()
        self._heard: dict[str, None] = {}
        self._ears = {name: Ear(name, make_signal, tell=partial(self._tell, name)) for name in channels}

    def enter(self, left: TimeLeft) -> Flow[None]:
        """Begin to hear, and wait until all ears are active, or the time is over."""
        unheard = [ear for ear in self._ears.values() if self._board.enter(ear)]
        if unheard:
            self._listener.poke()
        for ear in self._ears.values():
            if not ear.ready.is_set():
                yield Wait(ear.ready, left.seconds())

    def next(self, left: TimeLeft) -> Flow[list[str]]:
        """The channels that were heard since the last call; an empty list when the time is over.

        Raises:
            ClosedError: the client is closed.
        """
        self._signal = self._make_signal()
        if not self._heard:  # a payload from now on sets the new signal
            one = next(iter(self._ears.values()))
            self._board.await_next(one, self._signal)  # sets it when the client is closed: one ear is enough for that
            yield Wait(self._signal, left.seconds())
        if self._board.closed:
            raise ClosedError("the client is closed")
        heard = []
        while self._heard:
            heard.append(self._heard.popitem()[0])  # before the look: a payload that arrives after the look counts
        return [name for name in heard if name in self._ears]

    def leave(self, channel: str) -> None:
        """Stop hearing one of the channels."""
        self._board.leave(self._ears.pop(channel))

    def close(self) -> None:
        """Stop hearing."""
        for ear in self._ears.values():
            self._board.leave(ear)

    def _tell(self, channel: str, heard: str | Gap) -> None:
        self._heard[channel] = None
        self._signal.set()
