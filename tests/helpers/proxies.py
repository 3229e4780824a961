"""A TCP proxy in front of the test's server, which can become a black hole: it keeps all connections and moves nothing.

New connections succeed then too, since the kernel accepts them: that is how a stopped pooler or a stopped host behind a
load balancer looks. What was sent meanwhile is delivered when the proxy goes on. Or the server can be away: then all
connections are closed, and each new one at once.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from psycopg.conninfo import conninfo_to_dict, make_conninfo

NOTICE = b"N" + (1 << 24).to_bytes(4, "big")  # the head of a message of 16 MiB


class Proxy:
    """Forwards connections to the server of `dsn`. `self.dsn` leads through it."""

    def __init__(self, dsn: str, port: int = 0) -> None:
        known = conninfo_to_dict(dsn)
        self._host, self._port = str(known.get("host") or "localhost"), int(str(known.get("port") or 5432))
        self._accepting = socket.create_server(("127.0.0.1", port), backlog=64)
        self._port_here = self._accepting.getsockname()[1]
        self.dsn = make_conninfo(dsn, host="127.0.0.1", hostaddr="", port=self._port_here)
        self._moving = threading.Event()
        self._moving.set()
        self._paused = threading.Event()
        self._over = False
        self._away = False
        self.attempts = 0  # connections that clients have opened
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._accepting, selectors.EVENT_READ)
        self._kept: list[socket.socket] = []
        self._beginnings: dict[socket.socket, bytes] = {}  # see drip()
        self._peers: dict[socket.socket, socket.socket] = {}
        self._thread = threading.Thread(target=self._run, name="proxy", daemon=True)
        self._thread.start()

    @contextmanager
    def black_hole(self) -> Iterator[None]:
        """Nothing is moved within the block."""
        self.swallow()
        try:
            yield
        finally:
            self.go_on()

    def swallow(self) -> None:
        """Returns when the proxy moves nothing any more."""
        self._paused.clear()
        self._moving.clear()
        assert self._paused.wait(30)

    def go_on(self) -> None:
        self._moving.set()

    def drip(self) -> None:
        """From now on the present connections get no answers: a message that does not end arrives, byte by byte."""
        self._beginnings = {end: NOTICE for end in self._peers if self._is_client(end)}

    @contextmanager
    def away(self) -> Iterator[None]:
        """Within the block all connections are closed, those of before and each new one."""
        self.swallow()
        self._away = True
        for end in self._peers:
            self._selector.unregister(end)
            end.close()
        self._peers.clear()
        self.go_on()
        try:
            yield
        finally:
            self._away = False

    def forget(self) -> None:
        """In a black hole: drop the connections of the clients, and keep those to the server, for good."""
        assert not self._moving.is_set()
        for client in list(filter(self._is_client, self._peers)):
            server = self._peers.pop(client)
            del self._peers[server]
            for end in (client, server):
                self._selector.unregister(end)
            self._kept.append(server)
            client.close()

    def mute(self) -> None:
        """In a black hole: move nothing on the present connections any more, and close none."""
        assert not self._moving.is_set()
        for end in self._peers:
            self._selector.unregister(end)
            self._kept.append(end)
        self._peers.clear()

    def _is_client(self, end: socket.socket) -> bool:
        return end.family == socket.AF_INET and end.getsockname()[1] == self._port_here

    def close(self) -> None:
        self._over = True
        self.go_on()
        self._thread.join(30)

    def _run(self) -> None:
        while not self._over:
            if not self._moving.is_set():
                self._paused.set()
                self._moving.wait()
            for end in self._beginnings:
                with contextlib.suppress(OSError):
                    end.send(self._beginnings[end])
                self._beginnings[end] = b"x"
            for key, _ in self._selector.select(0.01):
                found = key.fileobj
                assert isinstance(found, socket.socket)
                if found is self._accepting:
                    self._connect(found.accept()[0])
                elif found in self._peers:
                    self._move(found)
        for end in [self._accepting, *self._peers, *self._kept]:
            end.close()

    def _connect(self, client: socket.socket) -> None:
        self.attempts += 1
        try:
            if self._away:
                raise ConnectionRefusedError
            server = self._server()
        except OSError:
            client.close()
            return
        for end, peer in ((client, server), (server, client)):
            self._peers[end] = peer
            self._selector.register(end, selectors.EVENT_READ)

    def _server(self) -> socket.socket:
        if not self._host.startswith("/"):
            return socket.create_connection((self._host, self._port))
        server = socket.socket(socket.AF_UNIX)
        server.connect(str(Path(self._host) / f".s.PGSQL.{self._port}"))
        return server

    def _move(self, end: socket.socket) -> None:
        data = b""
        with contextlib.suppress(OSError):
            data = end.recv(1 << 16)
            if self._peers[end] not in self._beginnings:
                self._peers[end].sendall(data)
        if not data:
            for each in (end, self._peers[end]):
                self._selector.unregister(each)
                del self._peers[each]
                each.close()


@contextmanager
def proxy(dsn: str) -> Iterator[Proxy]:
    made = Proxy(dsn)
    try:
        yield made
    finally:
        made.close()
