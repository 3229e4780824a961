"""The client or the cluster that a worker serves. It has the handlers and jobs, and one server or several.

A worker that serves only some servers of a cluster leaves servers while it lives. So it has cores of its own for them,
and closes those that it has left: the cores of the cluster may be in use by the program, and stay. The home server is
served on the core of the cluster, whose listener is there in any case.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping
from typing import Any

from .._engine.cluster.servers import Server, salts_of
from .._engine.core import Core
from ..errors import Error
from ..jobs.clients import AnyClient, AsyncCluster, Client, Cluster
from .spread import Spread

Own = Mapping[Server[Any], Core]

PATIENCE = 1.0  # seconds to leave the other workers


class Front:
    """The client, and the servers at one time.

    Args:
        client: with the handlers.
        spread: the worker's place among those that share the servers; None: it serves all of them.
        before: the front that this one replaces: servers that stay are served on the same cores.

    Attributes:
        client, spread: as above.
        cores: of the servers to serve, which a cluster may replace (renewed); of all while the worker cannot choose.
    """

    def __init__(self, client: AnyClient, spread: Spread | None = None, before: Front | None = None) -> None:
        self.client = client
        self.spread = spread
        self._own: dict[Server[Any], Core] = {}
        if isinstance(client, Cluster | AsyncCluster):
            servers: list[Server[Any]] = [*client._members.all]
            self.cores: list[Core] = [server.client.shell.core for server in servers]
            if spread is not None and spread.is_ready:
                self._choose(spread, servers, before._own if before else {})
        else:
            self.cores = [client.shell.core]

    def _choose(self, spread: Spread, servers: list[Server[Any]], known: Own) -> None:
        home, chosen = self.cores[0], [servers[index] for index in spread.indices(salts_of(servers))]
        others = [server for server in chosen if server is not servers[0]]
        self._own = {server: known.get(server) or Core(server.client.shell.core.settings) for server in others}
        self.cores = [home] * (len(others) < len(chosen)) + list(self._own.values())

    @property
    def home(self) -> Core:
        """Of its server; of a cluster, of the home server."""
        return self.cores[0] if self.spread is None else self.spread.home()

    @property
    def serves_home(self) -> bool:
        return self.home in self.cores

    def is_chosen(self) -> bool:
        """Whether the servers to serve are known. Raises Error: the worker cannot share them with others."""
        if self.spread is None:
            return True
        if self.spread.failure is not None:
            raise self.spread.failure
        return self.spread.is_ready

    def renewed(self) -> Front:
        """With the servers that are to be served by now; the same one if they are as before."""
        new = Front(self.client, self.spread, self)
        return self if new.cores == self.cores else new

    def follow(self, callback: Callable[[], object]) -> None:
        """Call a function whenever the cluster's list of servers was replaced."""
        if isinstance(self.client, Cluster | AsyncCluster):
            self.client.on_change(callback)

    def unfollow(self, callback: Callable[[], object]) -> None:
        """Call this function no more."""
        if isinstance(self.client, Cluster | AsyncCluster):
            self.client.off_change(callback)

    def reach(self) -> None:
        """Reach one server, in one attempt for each. Raises the error of the last one if there is none."""
        failure: Error | None = None
        for core in self.cores:
            try:
                core.listener(0)
            except Error as error:
                failure = error
            else:
                return
        if failure is not None:
            raise failure

    def leave(self, used: Collection[Core] = ()) -> None:
        """Close the worker's own cores, except those that are in use."""
        for core in self._own.values():
            if core not in used:
                core.close()

    def close(self) -> None:
        """Close the clients. The connections of an event loop have ended with that loop."""
        for core in self.cores:
            core.close()
        if isinstance(self.client, Client | Cluster):
            self.client.close()


class Fronts:
    """The front of a worker's present shift, and those of shifts that have not ended."""

    def __init__(self, client: AnyClient) -> None:
        self.present = Front(client)
        self._left: list[Front] = []
        self._lock = threading.Lock()

    def replace(self, front: Front) -> Front:
        """Go on with another front. Returns the one before, which is in use until ended()."""
        with self._lock:
            replaced, self.present = self.present, front
            self._left.append(replaced)
        if replaced.spread is not None and replaced.spread is not front.spread:
            replaced.spread.end()
        return replaced

    def ended(self, front: Front) -> None:
        """The shift of a front that was replaced has ended: close what no other one uses."""
        with self._lock:
            self._left.remove(front)
        used = self._used()
        front.leave(used)
        if front.client is not self.present.client and not {front.home, *front.cores} & used:
            front.close()

    def give_up(self, front: Front) -> None:
        """No shift could begin on this front: the present one stays."""
        front.leave(self._used())
        if front.spread is not None and front.spread is not self.present.spread:
            front.spread.end()

    def end(self) -> None:
        """The worker has ended: it shares no servers with others any more, and closes its own cores."""
        for front in [self.present, *self._left]:
            if front.spread is not None:
                front.spread.end()
                front.spread.join(PATIENCE)
            front.leave()

    def _used(self) -> set[Core]:
        with self._lock:
            return {core for one in (self.present, *self._left) for core in (one.home, *one.cores)}
