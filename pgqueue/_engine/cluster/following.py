"""The thread that follows the table of servers while a cluster is open.

It hears `pgqueue:servers` by the listeners that there are: that of the home server, which it starts, and those that
takes have started. While the home server is away it starts another one's. A notification, a gap or a new listener is a
hint to read that server's copy; the newest copy counts. So a change that was made while a connection was lost is seen
with the next one, and the thread reads nothing while nothing happens. Every TICK seconds it looks whether there is
another server to hear. The catalogue of Citus sends no notifications, and is read at each of these looks.

A thread of its own, since connecting to a server that is away blocks for seconds: a listener would hear nothing, and
an event loop would stand still.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Generic, TypeVar

from ..._calls.call import Call
from ..._calls.servers import CHANNEL, servers
from ..._values.logs import log
from ...errors import Error
from .. import forks
from ..listener import Listener
from ..owners import Owned
from ..switchboard import Ear, Gap
from .members import Listed, Listing, of_citus, of_table
from .servers import ClientLike, Server, Servers

C = TypeVar("C", bound=ClientLike)
T = TypeVar("T")


TICK = 5.0  # seconds between two looks for a server to hear
LONGEST = 15.0  # seconds to wait until a listener hears


class Following(Generic[C]):
    """Keeps the servers of a cluster as the newest listing has them. Begins when made; ends at close().

    Args:
        make: a client for a server of the listing. It must not connect.
        first: the listing that was read at the start.
        citus: the DSN of the node with the catalogue; None: the servers have a table.
    """

    def __init__(
        self, members: Servers[C], make: Callable[[Listed], C], first: Listing, citus: str | None = None
    ) -> None:
        self._members = members
        self._make = make
        self._citus = citus
        self._listing = first
        self._closed = False
        self._members.replace(self._servers(first))
        self._begin()
        forks.register(self)

    def close(self) -> None:
        """End the thread, which may still be connecting: it changes nothing after this."""
        self._closed = True
        self._woken.set()

    def after_fork(self) -> None:
        if not self._closed:
            self._begin(TICK)  # by then the clients have let go of their parents' connections

    def _begin(self, pause: float = 0.0) -> None:
        self._ears: dict[Listener, Ear] = {}
        self._told: queue.SimpleQueue[Listener] = queue.SimpleQueue()  # whose server is to be read
        self._woken = threading.Event()
        Owned("pgqueue-cluster", partial(self._run, pause), lambda: self._closed).start()

    # --- the thread

    def _run(self, pause: float) -> None:
        self._woken.wait(pause)
        while not self._closed:
            listeners = self._listeners()
            self._ears = {listener: self._ears.get(listener) or self._hear(listener) for listener in listeners}
            for listing in self._read(listeners):
                self._adopt(listing)
            self._woken.wait(TICK)
            self._woken.clear()

    def _listeners(self) -> list[Listener]:
        """Those that run, and that of the home server, or while it is away of another one."""
        found: list[Listener] = []
        for server in self._members.all:
            core = server.client.shell.core
            if not found and core.running_listener is None and not server.resting():
                self._start(server)
            listener = core.running_listener
            if listener is not None and not (server.failed and listener.session is None):
                found.append(listener)
        return found

    def _start(self, server: Server[C]) -> None:
        """Start the listener of a server, if that can be reached."""
        try:
            with server.asked():
                if server.unchecked:
                    server.check()
                server.client.shell.core.listener(0)
        except Error as error:
            log.debug("%s cannot tell changes of the table of servers: %s", server, error)

    def _hear(self, listener: Listener) -> Ear:
        """Hear of changes by a listener. Its server's copy is read as soon as every later change is heard."""

        def tell(heard: str | Gap) -> None:
            self._told.put(listener)
            self._woken.set()

        ready = threading.Event()
        ear = Ear(CHANNEL, lambda: ready, tell=tell)
        if listener.switchboard.enter(ear):
            listener.poke()
        ready.wait(min(listener.call_timeout, LONGEST))
        tell("")
        return ear

    def _read(self, listeners: Iterable[Listener]) -> Iterator[Listing]:
        if self._citus is not None:
            found = (_ask(listener, of_citus(self._citus)) for listener in listeners)
            yield from [listing for listing in found if listing is not None][:1]
            return
        told = set()
        with contextlib.suppress(queue.Empty):
            while True:
                told.add(self._told.get_nowait())
        for listener in told:
            if (table := _ask(listener, servers())) is not None:
                yield of_table(table, "")

    def _adopt(self, listing: Listing) -> None:
        now = self._listing
        if listing.cluster != now.cluster:
            log.warning("a server of the cluster has the table of another cluster, which is not used")
        elif listing.version > now.version or (self._citus is not None and listing != now):
            self._listing = listing
            self._members.replace(self._servers(listing))
            log.info("the servers of the cluster are now %s", ", ".join(map(str, self._members.all)))

    def _servers(self, listing: Listing) -> Sequence[Server[C]]:
        """The servers of a listing that are not gone. One whose DSNs are as before stays, with its client."""
        known = {server.listed.salt: server for server in self._members.all if server.listed is not None}
        made = []
        for listed in listing.servers:
            server = known.get(listed.salt)
            if server is None or not listed.is_reached_as(server.listed):
                server = Server(self._make(listed), self._members.retry, listed=listed)
            server.listed = listed
            if listed.state != "gone":
                made.append(server)
        return made


def _ask(listener: Listener, call: Call[T]) -> T | None:
    """Run a call on a listener's connection. None if it fails: the next hint asks again."""
    done = threading.Event()
    asked = listener.ask(call, done)
    if not done.wait(min(listener.call_timeout, threading.TIMEOUT_MAX)):
        listener.withdraw(asked)
        return None
    try:
        return asked.outcome()
    except Exception as error:
        log.debug("a server could not tell the servers of the cluster: %s", error)
        return None
