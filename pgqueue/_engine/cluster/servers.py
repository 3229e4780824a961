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
from ...errors import CallTimeout, ConnectionLost, ServerError, TaskElsewhere
from ..shell import ShellBase


class ClientLike(Protocol):
    """A client of either shell: the part that this package uses."""

    @property
    def shell(self) -> ShellBase: ...


C = TypeVar("C", bound=ClientLike)
Place = int | str | bytes
BITS = 43  # of an id, below the number of its server; as in sql/2_base/server.sql
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

    @property
    def home(self) -> Server[C]:
        """The server with everything that is one for the cluster: locks, schedules, channels."""
        return self.all[0]

    def turn(self) -> int:
        """The index of the server to begin with, for a call without a key: each server in turn."""
        return next(self._turns) % len(self.all)

    def placed(self, key: Place | None) -> int:
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

    def of_client(self, given: object) -> Server[C] | None:
        """The server of a task or a batch that a client of this cluster has made; None for another one, and an id."""
        shell = getattr(given, "_bound", None) or getattr(given, "_shell", None)
        core = getattr(shell, "core", None)
        return next((server for server in self.all if core is not None and server.client.shell.core is core), None)

    def numbered(self, id: int, failure: Exception | None) -> Server[C]:
        """The server that has the tasks and batches with ids like this one.

        Args:
            failure: of a server that could not be reached. It may be the one; without a number it may be another one.

        Raises:
            TaskElsewhere: no server has the number.
            ServerError: none of the servers that were reached has it.
            ValueError: it is 0, and several servers may have it.
        """
        number = id >> BITS
        known = [server for server in self.all if server.whereabouts is not None]
        found = [server for server in known if server.whereabouts and server.whereabouts.number == number]
        if len(found) > 1 or (number == 0 and found and len(known) < len(self.all)):
            raise ValueError(
                f"id {id} has no number of a server, so it may be of {' or '.join(map(self.name, found))}: give the"
                " task itself, or number the servers with pgqueue.set_server() before their first task"
            )
        if found:
            return found[0]
        if len(known) < len(self.all):
            raise ServerError(f"server {number}, which has id {id}, was not reached: {failure}") from failure
        raise TaskElsewhere(f"id {id} is of server {number}, and no server of this cluster has this number", id)

    def name(self, server: Server[C]) -> str:
        """A server's name in messages: its number, or its place in the list."""
        number = server.whereabouts.number if server.whereabouts else 0
        return f"server {number}" if number else f"server {self.all.index(server)} of the list"

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
