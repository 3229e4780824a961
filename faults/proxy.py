"""A TCP proxy in front of the server, with the faults of a network.

    delay       each piece of data is passed on later, in order
    hold        nothing is passed on for a while, then everything: answers come late, as after a short partition
    swallow     a black hole: data of all connections vanishes, and new connections get no answer; nothing is closed
    cut         all connections are closed at once
    halve       of some answers of the server half is passed on, then the connection is closed
    garble      some answers of the server come as noise

After a black hole its connections stay dead: they are open for the client, and silent, as when a router has forgotten
them. A client that waits for an answer on one waits until its own deadline. The server's ends are closed when the hole
ends, as the server's keepalives would do it. New connections work then.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import struct
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any

from psycopg.conninfo import conninfo_to_dict, make_conninfo

PIECE = 65536
SPOILT = 100  # one of so many answers is halved or garbled, on average
LINGER = struct.pack("ii", 1, 0)  # a close then sends a reset
#: The options of a connection. The times are those that a client of pgqueue asks of the server.
TUNED = {"TCP_NODELAY": 1, "TCP_KEEPIDLE": 5, "TCP_KEEPINTVL": 2, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 10_000}


Spoils = Callable[[bytes], bytes]


def halved(data: bytes) -> bytes:
    return data[: len(data) // 2]


def noise(data: bytes) -> bytes:
    return random.randbytes(len(data))


class Link:
    """A client's connection and its own connection to the server."""

    def __init__(self) -> None:
        self.dead = False
        self.writers: list[asyncio.StreamWriter] = []  # the client's, then the server's

    def close(self, which: slice = slice(None), *, reset: bool = False) -> None:
        for writer in self.writers[which]:
            with contextlib.suppress(OSError):
                if reset:
                    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER)
                writer.transport.abort()


class Proxy:
    """A proxy on a port of its own. Its event loop runs in a thread; the methods are called from other threads."""

    def __init__(self, dsn: str, address: str = "127.0.0.1") -> None:
        given = conninfo_to_dict(dsn)
        self._host, self._port = str(given.get("host") or "127.0.0.1"), int(given.get("port") or 5432)
        self.delay = 0.0
        self.spoils: Spoils | None = None
        self._swallowing = False
        self._links = set[Link]()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._thread.start()
        self._open = self._run(self._event())
        self._server: asyncio.Server = self._run(self._serve(address))
        port = self._server.sockets[0].getsockname()[1]
        # TLS is between the client and the server, and through the proxy the name of the server would be wrong.
        self.dsn = make_conninfo(dsn, host=address, port=port, hostaddr="", sslmode="disable", gssencmode="disable")

    def hold(self) -> None:
        self._call(self._open.clear)

    def swallow(self) -> None:
        self._call(self._begin_hole)

    def cut(self) -> None:
        self._call(self._cut)

    def halve(self) -> None:
        self.spoils = halved

    def garble(self) -> None:
        self.spoils = noise

    def mend(self) -> None:
        """Work as a proxy should, from now on."""
        self._call(self._mend)

    def reset(self) -> None:
        """After a black hole: its connections are reset, as by a server that does not know them any more."""
        self._call(self._reset)

    def close(self) -> None:
        self._run(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _end(self) -> None:
        self._server.close()
        self._cut()
        passing = asyncio.all_tasks() - {asyncio.current_task()}
        for task in passing:
            task.cancel()
        await asyncio.gather(*passing, return_exceptions=True)
        await asyncio.sleep(0.01)  # an aborted transport closes its socket in the loop's next round

    def _begin_hole(self) -> None:
        self._swallowing = True
        for link in self._links:
            link.dead = True

    def _cut(self) -> None:
        for link in list(self._links):
            link.close()

    def _reset(self) -> None:
        for link in list(self._links):
            if link.dead:
                link.close(slice(1), reset=True)

    def _mend(self) -> None:
        self.delay, self.spoils = 0.0, None
        self._swallowing = False
        self._open.set()
        for link in self._links:
            if link.dead:
                link.close(slice(1, None))

    async def _event(self) -> asyncio.Event:
        event = asyncio.Event()
        event.set()
        return event

    async def _serve(self, address: str) -> asyncio.Server:
        return await asyncio.start_server(self._accept, address, 0, backlog=500)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = Link()
        link.writers.append(writer)
        link.dead = self._swallowing
        self._links.add(link)
        try:
            if link.dead:
                await reader.read(-1)  # until the client gives up
                return
            there, back = await self._connect()
            link.writers.append(back)
            self._tune(writer, back)
            await asyncio.gather(self._pass(link, reader, back), self._pass(link, there, writer, answers=True))
        except OSError:
            pass  # the server is away, or either end has gone
        finally:
            if not link.dead:  # else neither end is told, until the proxy ends
                link.close()
                self._links.discard(link)

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._host.startswith("/"):
            return await asyncio.open_unix_connection(f"{self._host}/.s.PGSQL.{self._port}")
        return await asyncio.open_connection(self._host, self._port)

    async def _pass(
        self, link: Link, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, answers: bool = False
    ) -> None:
        """Pass on what one end sends; `answers`: the server."""
        while data := await reader.read(PIECE):
            await self._open.wait()
            if self.delay:
                await asyncio.sleep(self.delay)
            if link.dead:
                continue
            spoils = self.spoils if answers and random.randrange(SPOILT) == 0 else None
            writer.write(spoils(data) if spoils else data)
            await writer.drain()
            if spoils is halved:
                break
        if link.dead:
            return  # neither end is told that the other has closed
        await self._open.wait()
        link.close()

    def _tune(self, *writers: asyncio.StreamWriter) -> None:
        """Pass data on at once; and notice a client that is gone, as the server would if it had the connection."""
        for writer in writers:
            plug = writer.get_extra_info("socket")
            if plug.family != socket.AF_UNIX:
                plug.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                for option, value in TUNED.items():
                    if hasattr(socket, option):
                        plug.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)

    def _run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(30)

    def _call(self, function: Callable[[], object]) -> None:
        done: Future[None] = Future()

        def call() -> None:
            try:
                function()
            finally:
                done.set_result(None)

        self._loop.call_soon_threadsafe(call)
        done.result(30)
