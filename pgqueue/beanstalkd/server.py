"""The server: accepts connections, and ends them."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

from .. import AsyncClient
from .._engine.owners import OwnedTask
from . import protocol
from .clock import Clock
from .connection import Connection, Log, Parts
from .figures import Figures
from .jobs import Jobs
from .leftovers import Leftovers
from .stats import Reports
from .wire import Reader, Wire

MAX_JOB_SIZE = 65535  # bytes, as beanstalkd's default
MAX_CONNECTIONS = 10_000
AT_ONCE = 64  # commands that ask the database: beyond them a wait for a connection of the pool would end in an error


class Server:
    """A server for clients of beanstalkd, over one client of pgqueue.

    Args:
        client: all connections put and take with it. Its max_data_size has to be six times max_job_size: JSON has six
            bytes for some characters.
        max_job_size: the longest body of a job, in bytes.
        max_connections: how many are served at once; a further one gets OUT_OF_MEMORY, and is closed.
        delete_tubes: whether the queue of a tube is deleted once it is empty and no connection refers to it.
    """

    def __init__(
        self,
        client: AsyncClient,
        *,
        max_job_size: int = MAX_JOB_SIZE,
        max_connections: int = MAX_CONNECTIONS,
        delete_tubes: bool = False,
    ) -> None:
        figures, clock, jobs = Figures(max_job_size), Clock(client), Jobs(client)
        self._parts = Parts(jobs, Reports(client, figures, clock), figures, clock, Log(), asyncio.Semaphore(AT_ONCE))
        self._leftovers = Leftovers(jobs, figures) if delete_tubes else None
        self._over = asyncio.Event()
        self._max_connections = max_connections
        self._serving: set[asyncio.Task[None]] = set()
        self._listening: asyncio.Server | None = None

    async def start(self, listening: socket.socket) -> None:
        """Accept connections at a socket that listens."""
        self._listening = await asyncio.get_running_loop().create_server(self._protocol, sock=listening)
        if (leftovers := self._leftovers) is not None:
            OwnedTask("pgqueue-leftovers", lambda: leftovers.run(self._over), self._over.is_set)

    @property
    def address(self) -> Any:
        """The address at which it listens, as socket.getsockname() returns it."""
        assert self._listening is not None, "the server has not started"
        return self._listening.sockets[0].getsockname()

    def drain(self) -> None:
        """Refuse all puts from now on."""
        self._parts.figures.draining = True

    async def close(self) -> None:
        """End all connections. The jobs that they have reserved are ready again when the client is closed."""
        self._over.set()
        if self._listening is not None:
            self._listening.close()
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)

    def _protocol(self) -> asyncio.StreamReaderProtocol:
        reader = Reader()

        def connected(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
            self._serving.add(task)
            task.add_done_callback(self._serving.discard)

        return asyncio.StreamReaderProtocol(reader, connected)

    async def _serve(self, reader: Reader, writer: asyncio.StreamWriter) -> None:
        try:
            if len(self._serving) > self._max_connections:
                writer.write(protocol.OUT_OF_MEMORY)
            else:
                await Connection(self._parts, Wire(reader, writer)).serve()
        finally:
            writer.close()
