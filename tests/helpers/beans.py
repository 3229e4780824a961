"""A client of beanstalkd that shows the bytes of each answer; and beanstalkd itself, where it is installed."""

from __future__ import annotations

import asyncio
import re
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from eventually import eventually

_chunk = re.compile(rb"(?:OK|(?:FOUND|RESERVED) \d+) (\d+)\r\n").fullmatch


class Bean:
    """One connection. Call it with a command for its answer."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def connect(cls, port: int) -> Bean:
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    async def __call__(self, command: str | bytes) -> bytes:
        self.send((command.encode() if isinstance(command, str) else command) + b"\r\n")
        return await self.answer()

    def send(self, given: bytes) -> None:
        self.writer.write(given)

    async def answer(self) -> bytes:
        """The next answer, with its body; empty at the end of the connection."""
        line = await self.reader.readline()
        found = _chunk(line)
        return line + await self.reader.readexactly(int(found[1]) + 2) if found else line

    async def put(self, body: bytes = b"x", priority: int = 0, delay: int = 0, ttr: int = 60) -> int:
        answer = await self(b"put %d %d %d %d\r\n%s" % (priority, delay, ttr, len(body), body))
        assert answer.startswith(b"INSERTED "), answer
        return int(answer.split()[1])

    async def reserve(self, command: str = "reserve-with-timeout 30") -> tuple[int, bytes]:
        answer = await self(command)
        assert answer.startswith(b"RESERVED "), answer
        line, _, body = answer.partition(b"\r\n")
        return int(line.split()[1]), body[:-2]

    async def stats(self, command: str = "stats") -> dict[str, str]:
        answer = await self(command)
        assert answer.startswith(b"OK "), answer
        lines = answer.decode().split("\r\n", 1)[1].strip().split("\n")
        assert lines[0] == "---"
        return {key: value.strip('"') for key, value in (line.split(": ", 1) for line in lines[1:])}

    async def listed(self, command: str) -> list[str]:
        lines = (await self(command)).decode().split("\r\n", 1)[1].strip().split("\n")
        return [line.removeprefix("- ") for line in lines[1:]]

    async def close(self) -> None:
        self.writer.close()
        await self.writer.wait_closed()


@contextmanager
def beanstalkd() -> Iterator[int]:
    """The port of beanstalkd itself."""
    if (program := shutil.which("beanstalkd")) is None:
        pytest.skip("beanstalkd is not installed")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with subprocess.Popen([program, "-l", "127.0.0.1", "-p", str(port)]) as process:
        try:
            eventually(lambda: _listens(port))
            yield port
        finally:
            process.terminate()


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
