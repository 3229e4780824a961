"""The servers, their order, and which of them rest. No I/O but the check of a server.

A server that could not be reached rests for `retry` seconds: calls skip it, so that not each of them waits for a server
that does not answer. After that time one call tries it again, while the others still skip it. This call begins with a
new connection, which fails at once if the server is down; a pool would try to connect until its timeout is over.

A server that is not the one that it should be rests too, so that the others go on: a standby, an old primary, one with
another number, one whose schema does not fit this library.

The list of servers is replaced as a whole (replace), never changed in place: each call goes on with the list that it
has. A draining server gets no put that may go elsewhere, and gives its tasks. One that is gone is in no list; tasks
that were taken from it are settled there.
"""

from __future__ import annotations

import hashlib
import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Generic, Protocol, TypeVar

from ..._calls.server import Whereabouts
from ..._values.logs import log
from ...errors import CallTimeout, ConnectionLost, NotRunning, SchemaError, ServerError, SetupError, TaskElsewhere
from ..dsn import describe
from ..outages import Slow
from ..shell import ShellBase
from . import standing
from .kept import Kept
from .members import Listed


class ClientLike(Protocol):
    """A client of either shell: the part that this package uses."""

    @property
    def shell(self) -> ShellBase: ...


C = TypeVar("C", bound=ClientLike)
D = TypeVar("D", bound=ClientLike)
Place = int | str | bytes
BITS = 43  # of an id, below the number of its server; as in sql/2_base/server.sql
SLOW = 1.0  # seconds for which calls ask the others before a server that has not connected one of them
ABSENT = (ServerError, SchemaError, SetupError, NotRunning)  # the call had no effect
UNREACHABLE = (*ABSENT, ConnectionLost)


class Server(Generic[C]):
    """One server: its client, its part in the cluster, and whether calls reach it."""

    def __init__(
        self, client: C, retry: float, clock: Callable[[], float] = time.monotonic, listed: Listed | None = None
    ) -> None:
        self.client = client
        self.listed = listed  # None: the program has the list
        self.failed = False
        self.whereabouts: Whereabouts | None = None  # once a call has reached it
        self._retry = retry
        self._clock = clock
        self._rests_until = 0.0
        self.silent_until = float("-inf")  # the end of a rest after a call that had no answer
        self._slow_until = float("-inf")

    def resting(self) -> bool:
        """Whether calls skip this server. Returns False to the one call that tries it again."""
        if self.is_slow():
            return True
        if not self.failed:
            return False
        if self._clock() < self._rests_until:
            return True
        self._rests_until = self._clock() + self._retry
        return False

    def is_slow(self) -> bool:
        """Whether a call has moved on to another server a moment ago, while this one was connecting."""
        return self._clock() < self._slow_until

    def asked(self) -> Asked:
        """Wrap a call: if it does not reach the server, the server rests. One that is slow to connect is asked last.

        Meanwhile its connection is made, or the attempt fails; then the next call finds the one or the other.
        """
        return Asked(self)

    def ended(self, error: BaseException | None) -> None:
        """A call has ended, with this error or without one. Other errors do not tell whether the server is there."""
        if error is None:
            self.failed, self._slow_until = False, float("-inf")
        elif isinstance(error, Slow):
            self._slow_until = self._clock() + SLOW
            if self.failed:
                self._rests_until = self._clock() + self._retry
        elif isinstance(error, UNREACHABLE):
            if self.listed is not None and not self.failed:
                log.warning("%s rests for %g s: %s", self, self._retry, error)
            self.failed, self._slow_until = True, float("-inf")
            self._rests_until = self._clock() + self._retry
            if isinstance(error, CallTimeout):
                self.silent_until = self._rests_until

    @property
    def is_away(self) -> bool:
        """Whether it is known to be away: it has failed, and is not just connecting."""
        return self.failed and not self.is_slow()

    @property
    def patience(self) -> float:
        """For how many seconds a call waits for it, if no other server can be asked."""
        return self.client.shell.settings.patience

    @property
    def is_active(self) -> bool:
        """Whether it gets tasks that may be on any server."""
        return self.listed is None or self.listed.state == "active"

    @property
    def unchecked(self) -> bool:
        """Whether a call has to check the server before: it had failed, or the first call to one of the table."""
        return self.failed or (self.listed is not None and self.whereabouts is None)

    def check(self) -> None:
        """Connect once, and end the rest if that succeeds. (A take that is stopped succeeds without the server.)

        Raises:
            ServerError: the server still cannot be reached, or is not the one that it should be.
            SchemaError, SetupError: it cannot be used by this library.
        """
        with self.asked():  # here, since a call that moves on does not wait for the end
            core = self.client.shell.core
            core.check()
            found = standing.look(core.conninfo(0))
            self.expect(found)
            if self.listed is not None or self.whereabouts is not None:  # else the first call's Servers.reached() notes
                self.whereabouts = found

    def expect(self, found: Whereabouts) -> None:
        """Compare the server that a connection has reached with the known one. Raises ServerError."""
        number = self.listed.number if self.listed else None
        if found.timeline is None:
            raise ServerError(f"{self} is a standby: its DSN has to lead to the primary")
        if self.whereabouts is not None and standing.is_older(found, self.whereabouts):
            raise ServerError(
                f"{self} is an old primary: it is at timeline {found.timeline}, and was at timeline"
                f" {self.whereabouts.timeline} after a promotion"
            )
        if number is not None and found.number != number:
            raise ServerError(
                f"{self} has the number {found.number} in its database, so its DSN leads to another server, or it was"
                " not numbered"
            )

    def __str__(self) -> str:
        at = describe(self.client.shell.core.settings.dsn or "")
        return f"server {self.listed.salt if self.listed else '?'} ({at})"


class Asked:
    """The block of Server.asked(). A class, since every call through a cluster enters it: a generator costs more."""

    __slots__ = ("_server",)

    def __init__(self, server: Server[Any]) -> None:
        self._server = server

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        self._server.ended(error)


class Turn:
    """The index of the server that the next take begins with. Lists with some of the servers share it."""

    next = 0


class Servers(Generic[C]):
    """All servers, in their order."""

    def __init__(self, clients: Sequence[C], retry: float) -> None:
        self._have([Server(client, retry) for client in clients])
        self.left: list[Server[C]] = []  # those that are gone
        self.retry = retry
        self.kept = Kept()
        self._turns = itertools.count()  # of puts
        self._takes = Turn()
        self._callbacks: list[Callable[[], object]] = []

    def on_change(self, callback: Callable[[], object]) -> None:
        """Call a function whenever the list was replaced, in the thread that did it. It must not raise or block."""
        self._callbacks.append(callback)

    def off_change(self, callback: Callable[[], object]) -> None:
        """Call this function no more."""
        self._callbacks.remove(callback)

    def replace(self, servers: Sequence[Server[C]]) -> None:
        """Set the list of servers. Those that are not in it any more are left."""
        self.left += [server for server in self.all if server not in servers]
        self._have(servers)
        for callback in list(self._callbacks):
            callback()

    def _have(self, servers: Iterable[Server[C]]) -> None:
        self.all = list(servers)
        self.active = _active(self.all)  # those that get puts without a server of their own

    def mirror(self, other: Servers[D], make: Callable[[D], C]) -> None:
        """Have the servers of another list, now and whenever that is replaced, each with a client of the other shell.

        `make` must not connect.
        """
        mirrored: dict[Server[D], Server[C]] = {}

        def again() -> None:
            nonlocal mirrored
            every = other.all
            mirrored = {one: mirrored.get(one) or Server(make(one.client), self.retry) for one in every}
            for one, ours in mirrored.items():
                ours.listed = one.listed  # its salt: a lane has one server in both shells
            self.replace([mirrored[one] for one in every])

        other.on_change(again)
        again()

    @property
    def home(self) -> Server[C]:
        """The server with everything that is one for the cluster: locks, schedules, channels."""
        return self.all[0]

    def turn(self) -> Server[C]:
        """The server of a put without a key: each active one in turn."""
        active = self.active
        return active[next(self._turns) % len(active)]

    def turn_of_take(self) -> Server[C]:
        """The server that a take begins with: each in turn, and the one behind the last that was found to have tasks.

        With a fixed order a program that puts each task and then takes it may meet the task's server last, every time.
        """
        every = self.all
        turn, self._takes.next = self._takes.next, self._takes.next + 1  # two threads may get the same: it is no matter
        return every[turn % len(every)]

    def found_at(self, server: Server[C]) -> None:
        """A take found tasks at a server that it did not begin with."""
        every = self.all
        if server in every:
            self._takes.next = every.index(server) + 1

    def placed(self, key: Place | None) -> Server[C]:
        """A key's server. None: turn().

        The server of a string or bytes is the one that scores highest of the active ones (rendezvous hashing): when a
        server is added to n, one key in n + 1 moves, to that server. By a digest modulo the number of servers n keys in
        n + 1 would move. An int is the index in a list of the program's, modulo the number of servers. The servers of a
        table have no such order, and an int is as its digits there.

        Raises:
            ValueError: it is not an int, a string or bytes.
        """
        if key is None:
            return self.turn()
        if isinstance(key, bool) or not isinstance(key, int | str | bytes):
            raise ValueError(f"a place is an int, a string or bytes, not {key!r}")
        every = self.all  # another thread may replace it
        if isinstance(key, int):
            if every[0].listed is None:
                return every[key % len(every)]
            key = str(key)
        text = key.encode(errors="surrogatepass") if isinstance(key, str) else key
        salts = dict(zip(every, salts_of(every), strict=True))
        return max(_active(every), key=lambda one: score(text, salts[one]))

    def to_ask(self, first: Server[C], *, puts: bool = False) -> Iterator[tuple[Server[C], bool]]:
        """The servers that do not rest, from `first` on; all of them if every one rests. For puts only active ones.

        Behind them, in turns and for connect_timeout at most, those that are not known to be away, with True: a server
        that is slow may connect the call in a moment. One may be slow for this call, and reached by another thread
        before this one goes on: so what counts is not whether it is slow by then.

        resting() is called when the caller reaches the server: a call that ends before must not use up the server's
        one try.
        """
        every = self.active if puts else self.all
        begin = every.index(first) if first in every else 0  # it has left since it was chosen
        order = every[begin:] + every[:begin]
        asked = False
        for server in order:
            if not server.resting():
                asked = True
                yield server, False
        end = time.monotonic() + max(server.patience for server in order)
        while (left := [server for server in order if not server.is_away]) and time.monotonic() < end:
            for server in left:
                asked = True
                yield server, True
        if not asked:
            for server in order:
                yield server, False

    def is_last(self, server: Server[C], *, puts: bool = False) -> bool:
        """Whether every other server that a call may go to is known to be away. For puts among the active ones."""
        others = self.active if puts else self.all
        return all(other is server or other.is_away for other in others)

    def of_client(self, given: object) -> Server[C] | None:
        """The server of a task or a batch that a client of this cluster has made; None for another one, and an id."""
        shell = getattr(given, "_bound", None) or getattr(given, "_shell", None)
        core = getattr(shell, "core", None)
        every = (*self.all, *self.left)
        return next((server for server in every if core is not None and server.client.shell.core is core), None)

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
        known = [server for server in (*self.all, *self.left) if server.whereabouts is not None]
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
        if server.listed is not None:
            return str(server)
        number = server.whereabouts.number if server.whereabouts else 0
        if number or server not in self.all:
            return f"server {number}"
        return f"server {self.all.index(server)} of the list"

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


def _active(servers: list[Server[C]]) -> list[Server[C]]:
    """The active servers; all, if none is active."""
    return [server for server in servers if server.is_active] or servers


def salts_of(servers: Sequence[Server[C]]) -> list[int]:
    """The salt of each server for rendezvous hashing: that of the table, or the index in a list of the program's."""
    return [index if one.listed is None else one.listed.salt for index, one in enumerate(servers)]


def placed_among(salts: Sequence[int], name: str) -> int:
    """The index, among servers by their salts, of the one that a lane or a key names, as Servers.placed() finds it."""
    text = name.encode(errors="surrogatepass")
    return max(range(len(salts)), key=lambda index: score(text, salts[index]))


def score(key: bytes, salt: int) -> bytes:
    """Of a key at a server. Not hash(), which Python salts differently in each process."""
    return hashlib.blake2b(key, digest_size=8, salt=salt.to_bytes(4)).digest()
