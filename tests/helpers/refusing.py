"""Servers that let no client in: each connection ends with an error of the test's choice, or nothing listens yet.

The server that answers is a process of its own: libpq's ping keeps the interpreter of the client's process to itself.
"""

from __future__ import annotations

import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from proxies import Proxy
from psycopg.conninfo import make_conninfo


@contextmanager
def refusing(sqlstate: str, message: str) -> Iterator[str]:
    """The DSN of a server that answers each connection with this error."""
    with socket.create_server(("127.0.0.1", 0)) as accepting:
        descriptor = accepting.fileno()
        process = subprocess.Popen(
            [sys.executable, __file__, str(descriptor), sqlstate, message],
            pass_fds=[descriptor],
            stdout=subprocess.PIPE,
        )
        try:
            assert process.stdout is not None
            process.stdout.readline()
            yield f"host=127.0.0.1 port={accepting.getsockname()[1]} sslmode=disable gssencmode=disable dbname=x user=x"
        finally:
            process.kill()
            process.communicate()


class Absent:
    """A server that is not there yet. `dsn` leads to a port that refuses connections, until come()."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._taken = socket.socket()  # so that no other process gets the port
        self._taken.bind(("127.0.0.1", 0))
        self._port = self._taken.getsockname()[1]
        self.dsn = make_conninfo(dsn, host="127.0.0.1", hostaddr="", port=self._port)
        self._proxy: Proxy | None = None

    def come(self) -> None:
        self._taken.close()
        self._proxy = Proxy(self._dsn, self._port)

    def close(self) -> None:
        self._taken.close()
        if self._proxy is not None:
            self._proxy.close()


def _answer(accepting: socket.socket, sqlstate: str, message: str) -> None:
    print("ready", flush=True)
    fields = f"SFATAL\0VFATAL\0C{sqlstate}\0M{message}\0\0".encode()
    while True:
        with accepting.accept()[0] as client:
            client.recv(1 << 12)
            client.sendall(b"E" + struct.pack("!i", len(fields) + 4) + fields)


if __name__ == "__main__":
    _answer(socket.socket(fileno=int(sys.argv[1])), *sys.argv[2:])
