"""The end of connections whose request does not arrive: for `pgqueue dashboard`, which has no web server before it."""

from __future__ import annotations

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

SILENCE = 10.0  # seconds; a request that has not arrived whole is ended after one to two times as long


class Attentive(H11Protocol):
    """Looks at its connection at intervals, and closes it if the same request is still to arrive.

    uvicorn has such a limit between two requests alone: a client that sent half of one stayed indefinitely.
    """

    silence = SILENCE

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(transport)
        self._look(None)

    def _look(self, before: tuple[Any] | None) -> None:
        if self.transport.is_closing():
            return
        # Of uvicorn's cycles each is for one request; an event stream has read all of its own.
        awaited = (self.cycle,) if self.conn.their_state in (h11.IDLE, h11.SEND_BODY) else None
        if awaited is not None and awaited == before:
            self.transport.close()
        else:
            self.loop.call_later(self.silence, self._look, awaited)
