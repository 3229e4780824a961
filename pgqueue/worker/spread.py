"""Which servers of a cluster this worker serves, if it serves only some: it shares them with the other workers.

Theory of operation
-------------------
The workers that serve the same queues and jobs, with the same `spread`, with schedules or without them, and in one role
of the database, are members of one group: a node of the home server, and an ephemeral node for each member
(sql/6_families/nodes.sql). Each computes the same assignment from the names of the members and the servers
(_engine/cluster/spreading.py). A member joins when it starts and leaves when it begins to stop. If its process dies,
the sweep ends its session, and with it the node.

A thread follows the group by the listener of the home server. A notification is a hint: once none has come for QUIET
seconds, or after LONGEST, the thread reads the list of members once. So 100 workers that start together read it a few
times each, and change their servers once or twice. Nothing is read while nothing happens, but once in LOOK seconds.

  The worker starts              It joins, and begins to work when it has read the list. It would otherwise connect to
                                 all servers and leave most of them a second later.
  The home server is away        The last list counts. After its return the others have to join again: the thread reads
                                 the list after RETURN seconds, by which they have.
  It is away at the start        The worker serves the other servers with its own highest scores, so that many workers
                                 do not all connect to all servers; some server may then have none.
  Two workers know lists         For that time a server has more or fewer workers. No worker takes what another one has
  of different age               taken, so this does no harm; the later list ends it.

The name of a member is its token, which stays for the life of the worker, and the session: after a loss of the session
the worker joins again at once, while the node of the old session may still be there, and others see no change.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from .._calls import groups, nodes
from .._calls.call import Call, query, scalar
from .._engine.cluster import spreading
from .._engine.core import Core
from .._engine.listener import Listener
from .._engine.outages import TELL, Pauses
from .._engine.owners import Owned
from .._engine.switchboard import Ear, Gap
from .._values.logs import log
from ..errors import CallTimeout, ClosedError, Error, NodeExists, NotAllowed, SchemaError, SetupError
from ..jobs.clients import AnyClient, AsyncCluster, Cluster

T = TypeVar("T")


QUIET = 1.0  # seconds without a change after which the list is read; and up to half of it more, so that not all read
LONGEST = 3.0  # seconds after which it is read although there are changes
RETURN = 3.0  # seconds after a connection that was lost
LOOK = 60.0  # seconds after which it is read without a change
AGAIN = (1.0, 1.0)  # seconds between two attempts

FINAL = (NotAllowed, SchemaError, SetupError)  # a worker with such an error does not begin

ROLE: Call[str] = query("SELECT CURRENT_USER::pg_catalog.text", (), scalar)

_numbers = itertools.count(1)


def clustered(client: AnyClient) -> Cluster | AsyncCluster:
    """A client that is a cluster. Raises ValueError."""
    if not isinstance(client, Cluster | AsyncCluster):
        raise ValueError("spread is for a worker of a Cluster, and this client has one server: leave it out")
    return client


@dataclass(frozen=True, slots=True)
class Kind:
    """What the members of a group have in common, beside the role."""

    k: int
    queues: tuple[str, ...]
    jobs: tuple[str, ...]
    schedules: bool

    def group(self, role: str) -> str:
        text = json.dumps([role, self.k, self.queues, self.jobs, self.schedules])
        return f"spread-{hashlib.blake2b(text.encode(), digest_size=12).hexdigest()}"


class Spread:
    """A worker's place among those of its kind, from begin() to end().

    Args:
        token: names the worker among the others; without a dot.
        changed: called after each change of `members`, in another thread.
        closed: called if the cluster is closed.
        before: the place before a reload, by whose members the choice is made at first.

    Attributes:
        members: the tokens of all members, as read last; None: not yet.
        is_ready: whether servers can be chosen: the list was read, or the home server is away.
        failure: why the worker cannot begin, if it is no member since it may not or cannot be.
    """

    def __init__(
        self,
        client: Cluster | AsyncCluster,
        kind: Kind,
        token: str,
        changed: Callable[[], object],
        closed: Callable[[], object],
        before: Spread | None = None,
    ) -> None:
        self.members: frozenset[str] | None = before.members if before else None
        self.is_ready = before is not None
        self.failure: Error | None = None
        self._client = client
        self._kind = kind
        self._token = token
        self._changed = changed
        self._over = closed
        self._number = next(_numbers)
        self._ending = threading.Event()
        self._news = threading.Event()
        self._heard_at = 0.0
        self._lost = False
        self._tell_at = 0.0
        self._pauses = Pauses(*AGAIN)
        self._thread = Owned("pgqueue-spread", self._run, self._ending.is_set)

    def begin(self) -> None:
        self._thread.start()

    def end(self) -> None:
        """Leave. Does not wait; may be called twice."""
        self._ending.set()
        self._news.set()

    def join(self, timeout: float) -> None:
        """Wait until it has left; after begin() and end()."""
        self._thread.join(timeout)

    def home(self) -> Core:
        """Of the home server."""
        return self._client._members.home.client.shell.core

    def indices(self, salts: Sequence[int]) -> list[int]:
        """The indices of the servers to serve, in their order, among servers with these salts."""
        members = self.members
        if members is None and self._kind.k < len(salts):
            chosen = spreading.preferred(self._token, salts[1:], self._kind.k)  # the home server is away
        else:
            everyone = {*(members or ()), self._token}
            chosen = spreading.spread(everyone, salts, self._kind.k)[self._token]
        return [index for index, salt in enumerate(salts) if salt in chosen]

    # --- the thread

    def _run(self) -> None:
        while not self._ending.is_set():
            try:
                self._follow(self.home().listener(0))
            except ClosedError:
                self._over()
                return
            except Error as error:
                self._failed(error)
                self._ending.wait(self._pauses.failed())

    def _failed(self, error: Error) -> None:
        if not self.is_ready:
            self.failure = error if isinstance(error, FINAL) else None
            self.is_ready = True
            self._changed()
        if self.failure is None and time.monotonic() >= self._tell_at:
            self._tell_at = time.monotonic() + TELL
            kept = "its own choice" if self.members is None else "those that it has"
            log.warning("the home server does not tell which workers share the servers: it serves %s: %s", kept, error)

    def _follow(self, listener: Listener) -> None:
        """Be a member, and read the list again after each change, until the connection is lost. Raises Error."""
        group = self._kind.group(_ask(listener, ROLE))
        name = f"{self._token}.{listener.last_session}.{self._number}"
        ready = threading.Event()
        ear = Ear(_ask(listener, nodes.channel(groups.group_path(group))), lambda: ready, tell=self._heard)
        self._lost = False
        if listener.switchboard.enter(ear):
            listener.poke()
        try:
            ready.wait(min(listener.call_timeout, LONGEST))
            _join(listener, group, name)
            self._heard_at = time.monotonic()
            self._settle(QUIET if self.members is None else RETURN)
            while not (self._ending.is_set() or self._lost):
                self._news.clear()
                self._read(listener, group, name)
                self._news.wait(random.uniform(0.5, 1.0) * LOOK)
                self._settle(QUIET)
        finally:
            listener.switchboard.leave(ear)
            if self._ending.is_set():
                listener.later(nodes.delete(f"{groups.group_path(group)}/{name}", None))

    def _heard(self, what: str | Gap) -> None:
        """The listener's thread calls this."""
        self._lost = self._lost or isinstance(what, Gap)
        self._heard_at = time.monotonic()
        self._news.set()

    def _settle(self, quiet: float) -> None:
        """Wait until nothing was heard for `quiet` seconds and up to half as many more, for LONGEST at most."""
        quiet, last = random.uniform(1.0, 1.5) * quiet, time.monotonic() + LONGEST
        while (left := min(last, self._heard_at + quiet) - time.monotonic()) > 0 and not self._ending.wait(left):
            pass

    def _read(self, listener: Listener, group: str, name: str) -> None:
        """Read the list of members, and tell a change."""
        found = {member.name for member in _ask(listener, groups.members(group)).value}
        if name not in found:  # it was deleted by hand; the join is heard, and the list read again
            _join(listener, group, name)
        members = frozenset(one.partition(".")[0] for one in found)
        if members != self.members or not self.is_ready:
            self.members, self.is_ready = members, True
            self._changed()


def _join(listener: Listener, group: str, name: str) -> None:
    with contextlib.suppress(NodeExists):
        _ask(listener, groups.join(group, None, "null", name)(None))


def _ask(listener: Listener, call: Call[T]) -> T:
    """Run a call on the listener's connection. Raises Error."""
    done = threading.Event()
    asked = listener.ask(call, done)
    if not done.wait(min(listener.call_timeout, threading.TIMEOUT_MAX)):
        listener.withdraw(asked)
        raise CallTimeout("the home server has not answered in time")
    return asked.outcome()
