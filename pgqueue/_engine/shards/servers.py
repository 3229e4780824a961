"""Which servers are asked, in which order, and which rest. No I/O but the check of a server that had failed.

A server that could not be reached rests for `retry` seconds: calls pass over it, instead of each waiting in turn for
what does not answer. After that one call tries it again, while the others still pass over it. It begins with a new
connection, which a server that is down refuses at once, whereas a pool would try again until its time is over.
"""

from __future__ import annotations

import itertools
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Generic, Protocol, TypeVar

from ...errors import ConnectionLost, ServerError
from .. import dsn
from ..shell import ShellBase


class ClientLike(Protocol):
    """A client of either shell, as far as this package needs it."""

    @property
    def shell(self) -> ShellBase: ...


C = TypeVar("C", bound=ClientLike)
ShardKey = int | str | bytes
UNREACHABLE = (ServerError, ConnectionLost)


class Server(Generic[C]):
    """One server: its client, and whether calls reach it."""

    def __init__(self, client: C, retry: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.client = client
        self.failed = False
        self._retry = retry
        self._clock = clock
        self._rests_until = 0.0

    def resting(self) -> bool:
        """Whether calls pass over it. False to the one call that is to try it again."""
        if not self.failed:
            return False
        if self._clock() < self._rests_until:
            return True
        self._rests_until = self._clock() + self._retry
        return False

    @contextmanager
    def asked(self) -> Iterator[None]:
        """Around a call: the server rests after one that did not reach it."""
        try:
            yield
        except UNREACHABLE:
            self.failed = True
            self._rests_until = self._clock() + self._retry
            raise
        self.failed = False

    def check(self) -> None:
        """Connect once: it is back if that succeeds. Not if a call does, as a take that was told to stop.

        Raises:
            ServerError: it is still out of reach.
        """
        core = self.client.shell.core
        dsn.check(core.conninfo(), core.settings.connect_timeout)
        self.failed = False


class Servers(Generic[C]):
    """All of them, in their order."""

    def __init__(self, clients: Sequence[C], retry: float) -> None:
        self.all = [Server(client, retry) for client in clients]
        self.retry = retry
        self._turns = itertools.count()

    def turn(self) -> int:
        """Where to begin when it does not matter: at each server in turn."""
        return next(self._turns) % len(self.all)

    def home(self, key: ShardKey | None) -> int:
        """Which server a key names: an int modulo their number, else the CRC-32 of its bytes; None: each in turn.

        Raises:
            ValueError: it is not an int, a string or bytes.
        """
        if key is None:
            return self.turn()
        if isinstance(key, bool) or not isinstance(key, int | str | bytes):
            raise ValueError(f"a shard key is an int, a string or bytes, not {key!r}")
        if isinstance(key, int):
            return key % len(self.all)
        # Not hash(), which Python salts anew in each process.
        return zlib.crc32(key.encode(errors="surrogatepass") if isinstance(key, str) else key) % len(self.all)

    def to_ask(self, first: int) -> Iterator[Server[C]]:
        """Those that do not rest, from one on; all of them if every one rests.

        Each is looked at when its turn comes: a call that ends before must not use up the one try of a later server.
        """
        order = self.all[first:] + self.all[:first]
        all_rest = True
        for server in order:
            if not server.resting():
                all_rest = False
                yield server
        if all_rest:
            yield from order

    def of(self, shell: object) -> Server[C]:
        """The server of a shell. Raises ValueError if it is none of these."""
        for server in self.all:
            if server.client.shell is shell:
                return server
        raise ValueError("this task was taken from none of these servers")

    def unreachable(self, failures: Sequence[Exception]) -> ServerError:
        error = ServerError(f"none of the {len(self.all)} servers can be reached; the last said: {failures[-1]}")
        error.__cause__ = failures[-1]
        return error
