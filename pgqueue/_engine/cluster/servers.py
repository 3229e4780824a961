"""The servers, their order, and which of them rest. No I/O but the check of a server that had failed.

A server that could not be reached rests for `retry` seconds: calls skip it, so that not each of them waits for a server
that does not answer. After that time one call tries it again, while the others still skip it. This call begins with a
new connection, which fails at once if the server is down; a pool would try to connect until its timeout is over.
"""

from __future__ import annotations

import hashlib
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Generic, Protocol, TypeVar

from ..._calls.server import Whereabouts
from ...errors import CallTimeout, ConnectionLost, ServerError
from ..shell import ShellBase


class ClientLike(Protocol):
    """A client of either shell: the part that this package uses."""

    @property
    def shell(self) -> ShellBase: ...


C = TypeVar("C", bound=ClientLike)
Place = int | str | bytes
UNREACHABLE = (ServerError, ConnectionLost)


class Server(Generic[C]):
    """One server: its client, and whether calls reach it."""

    def __init__(self, client: C, retry: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.client = client
        self.failed = False
        self.whereabouts: Whereabouts | None = None  # once a call has reached it
        self._retry = retry
        self._clock = clock
        self._rests_until = 0.0
        self.silent_until = float("-inf")  # the end of a rest after a call that had no answer

    def resting(self) -> bool:
        """Whether calls skip this server. Returns False to the one call that tries it again."""
        if not self.failed:
            return False
        if self._clock() < self._rests_until:
            return True
        self._rests_until = self._clock() + self._retry
        return False

    @contextmanager
    def asked(self) -> Iterator[None]:
        """Wrap a call: if it does not reach the server, the server rests."""
        try:
            yield
        except UNREACHABLE as error:
            self.failed = True
            self._rests_until = self._clock() + self._retry
            if isinstance(error, CallTimeout):
                self.silent_until = self._rests_until
            raise
        self.failed = False

    def check(self) -> None:
        """Connect once, and end the rest if that succeeds. (A take that is stopped succeeds without the server.)

        Raises:
            ServerError: the server still cannot be reached.
        """
        self.client.shell.core.check()
        self.failed = False


class Servers(Generic[C]):
    """All servers, in their order."""

    def __init__(self, clients: Sequence[C], retry: float) -> None:
        self.all = [Server(client, retry) for client in clients]
        self.retry = retry
        self._turns = itertools.count()

    def turn(self) -> int:
        """The index of the server to begin with, for a call without a key: each server in turn."""
        return next(self._turns) % len(self.all)

    def home(self, key: Place | None) -> int:
        """The index of a key's server. None: turn().

        An int is the index, modulo the number of servers. The server of a string or bytes is the one that scores
        highest (rendezvous hashing): when a server is added to the end of n, one key in n + 1 moves, to that server. By
        a digest modulo the number of servers n keys in n + 1 would move.

        Raises:
            ValueError: it is not an int, a string or bytes.
        """
        if key is None:
            return self.turn()
        if isinstance(key, bool) or not isinstance(key, int | str | bytes):
            raise ValueError(f"a place is an int, a string or bytes, not {key!r}")
        if isinstance(key, int):
            return key % len(self.all)
        text = key.encode(errors="surrogatepass") if isinstance(key, str) else key
        return max(range(len(self.all)), key=lambda index: _score(text, index))

    def to_ask(self, first: int) -> Iterator[Server[C]]:
        """The servers that do not rest, from `first` on; all of them if every one rests.

        resting() is called when the caller reaches the server: a call that ends before must not use up the server's
        one try.
        """
        order = self.all[first:] + self.all[:first]
        all_rest = True
        for server in order:
            if not server.resting():
                all_rest = False
                yield server
        if all_rest:
            yield from order

    def index(self, shell: object) -> int:
        """The index of a shell's server. Raises ValueError if the shell belongs to none of these servers."""
        for index, server in enumerate(self.all):
            if server.client.shell is shell:
                return index
        raise ValueError("this task or batch is from none of these servers")

    def reached(self, server: Server[C], at: Whereabouts) -> None:
        """Note where a server is.

        Raises:
            ValueError: another one of the list is the same database, or has the same number.
        """
        for other in self.all:
            if other is server or (known := other.whereabouts) is None:
                continue
            both = (
                f"servers {' and '.join(map(str, sorted((self.all.index(other), self.all.index(server)))))} of the list"
            )
            if known == at:
                raise ValueError(f"{both} are the same database: name each server once")
            if known.number == at.number != 0:
                raise ValueError(f"{both} both have the number {at.number}, so the ids of their tasks meet")
        server.whereabouts = at

    def unreachable(self, failures: Sequence[Exception]) -> ServerError:
        error = ServerError(f"none of the {len(self.all)} servers can be reached; the last said: {failures[-1]}")
        error.__cause__ = failures[-1]
        return error


def _score(key: bytes, index: int) -> bytes:
    """Of a key at a server. Not hash(), which Python salts differently in each process."""
    return hashlib.blake2b(key, digest_size=8, salt=index.to_bytes(4)).digest()
