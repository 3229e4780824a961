"""Graphite's end: servers of its plaintext protocol that go away, and come back at the same port."""

from __future__ import annotations

import contextlib
import queue
import socket
import threading

from eventually import PATIENCE


class TcpServer:
    """Collects lines at a port that stays its own while it is away."""

    def __init__(self) -> None:
        self._place = self._bound()
        self.port = self._place.getsockname()[1]
        self.lines: queue.SimpleQueue[str] = queue.SimpleQueue()

    def start(self) -> None:
        self._listening = self._bound()
        self._listening.listen()
        self._conns: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def stop(self) -> None:
        """Go away, in the middle of whatever is sent."""
        for conn in [self._listening, *self._conns]:
            with contextlib.suppress(OSError):
                conn.shutdown(socket.SHUT_RDWR)  # wakes its thread
        for thread in self._threads:
            thread.join()
        for conn in [self._listening, *self._conns]:
            conn.close()

    def close(self) -> None:
        with contextlib.suppress(AttributeError):  # it was never started
            self.stop()
        self._place.close()

    def connections(self) -> int:
        return len(self._conns)

    def _bound(self) -> socket.socket:
        bound = socket.socket()
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(("127.0.0.1", getattr(self, "port", 0)))
        return bound

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                conn, _ = self._listening.accept()
                self._conns.append(conn)
                self._threads.append(threading.Thread(target=self._read, args=(conn,)))
                self._threads[-1].start()

    def _read(self, conn: socket.socket) -> None:
        with contextlib.suppress(OSError), conn.makefile("r", encoding="utf-8", newline="\n") as text:
            for line in text:
                self.lines.put(line)


class UdpServer:
    """The same, by datagrams. Its place is kept by a socket that hears nobody, since it is connected to itself."""

    def __init__(self) -> None:
        self._place = self._bound()
        self.port = self._place.getsockname()[1]
        self._place.connect(self._place.getsockname())

    def start(self) -> None:
        self._socket = self._bound()
        self._socket.settimeout(PATIENCE)

    def stop(self) -> None:
        self._socket.close()

    def receive(self) -> str:
        return self._socket.recv(65536).decode()

    def close(self) -> None:
        with contextlib.suppress(AttributeError):
            self.stop()
        self._place.close()

    def _bound(self) -> socket.socket:
        bound = socket.socket(type=socket.SOCK_DGRAM)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(("127.0.0.1", getattr(self, "port", 0)))
        return bound
