"""The bytes of one connection, within bounds.

A client that sends without reading its answers, or more than a body at once, is read no further: at most a body and
twice CHUNK are kept of its input, and one answer beyond CHUNK of the output.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from . import protocol

CHUNK = 1 << 14  # bytes


class Gone(Exception):
    """The client has closed the connection, or its sending half."""


class Reader(asyncio.StreamReader):
    """A reader that reports the end of its input also while nothing reads."""

    def __init__(self) -> None:
        super().__init__(limit=CHUNK)
        self._at_end: Callable[[], object] | None = None
        self.ended = False  # there may be input that is not read yet

    def call_at_end(self, function: Callable[[], object] | None) -> None:
        """Call a function when the client closes its sending half; None: no function."""
        self._at_end = function

    def feed_eof(self) -> None:
        super().feed_eof()
        self._end()

    def set_exception(self, exc: BaseException) -> None:
        super().set_exception(exc)  # type: ignore[arg-type]  # typeshed has Exception
        self._end()

    def _end(self) -> None:
        self.ended = True
        if self._at_end is not None:
            self._at_end()


class Wire:
    """Reads lines and bodies from a client, and sends it answers. Every method raises Gone."""

    def __init__(self, reader: Reader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self._writer = writer
        writer.transport.set_write_buffer_limits(high=CHUNK)

    async def line(self) -> bytes | None:
        """The next line without its CRLF; None for one that is longer than the protocol allows."""
        too_long = False
        while True:
            try:
                line = await self.reader.readuntil(b"\r\n")
            except asyncio.LimitOverrunError as error:
                await self._read(error.consumed)
                too_long = True
            except (asyncio.IncompleteReadError, OSError) as error:
                raise Gone from error
            else:
                return None if too_long or len(line) > protocol.LINE else line[:-2]

    async def body(self, size: int) -> bytes | None:
        """A body of this number of bytes; None if no CRLF follows it."""
        body = await self._read(size + 2)
        return body[:-2] if body.endswith(b"\r\n") else None

    async def skip(self, size: int) -> None:
        """Drop a body and its CRLF."""
        left = size + 2
        while left:
            left -= len(await self._read(min(left, CHUNK)))

    async def send(self, answer: bytes) -> None:
        """Send an answer, and wait until most of it has left."""
        try:
            self._writer.write(answer)
            await self._writer.drain()
        except OSError as error:
            raise Gone from error

    async def _read(self, size: int) -> bytes:
        try:
            return await self.reader.readexactly(size)
        except (asyncio.IncompleteReadError, OSError) as error:
            raise Gone from error
