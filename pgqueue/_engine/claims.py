"""The claim of messages that waits: the waiting take, with another call."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, cast

from .._calls.call import Call
from .._calls.take import AnyTaken, Taken
from .core import Core
from .cursor import Position
from .listener import Listener
from .steps import Flow, Signal
from .takes import Take

Row = TypeVar("Row", bound=AnyTaken)


def claim_messages(
    core: Core,
    listener: Listener,
    make_signal: Callable[[], Signal],
    queue: str,
    call: Call[list[Row]],
    n: int,
    timeout: float | None,
) -> Flow[list[Row]]:
    """Claim up to n of the queue's messages with `call`, as soon as one is ready."""
    return cast(
        "Flow[list[Row]]",
        _ClaimMessages(core, listener, make_signal, queue, cast("Call[list[Taken]]", call), n, timeout).run(),
    )


class _ClaimMessages(Take):
    """A take of messages. A claim of messages belongs to no session: if its answer is lost, it ends by its ttl."""

    def __init__(
        self,
        core: Core,
        listener: Listener,
        make_signal: Callable[[], Signal],
        queue: str,
        call: Call[list[Taken]],
        n: int,
        timeout: float | None,
    ) -> None:
        super().__init__(core, listener, make_signal, (queue,), n, timeout, lambda: False)
        self._claiming = call

    def _call(self, session: int, starts: list[Position | None]) -> Call[list[Taken]]:
        return self._claiming

    def _have_deadlines(self, tasks: list[Taken]) -> bool:
        return bool(tasks)  # each claim has a time
