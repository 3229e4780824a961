"""The clients of a worker: one, or those of a cluster, of which the first one has the handlers and jobs."""

from __future__ import annotations

from collections.abc import Sequence

from .._async.cluster import AsyncCluster
from .._engine.core import Core
from .._sync.cluster import Cluster
from ..errors import Error
from ..jobs.clients import AsyncClient, Client

AnyClient = Client | AsyncClient
AnyCluster = Cluster | AsyncCluster


class Front:
    """The client or cluster that was given. `client`: the one with the handlers; `cores`: of all servers."""

    def __init__(self, given: AnyClient | AnyCluster) -> None:
        self.given = given
        self.client = _with_jobs(given.clients[0]) if isinstance(given, AnyCluster) else given
        clients: Sequence[object] = given.clients if isinstance(given, AnyCluster) else [given]
        self.cores: list[Core] = [client.shell.core for client in clients]  # type: ignore[attr-defined]

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

    def close(self) -> None:
        """Close the clients. The connections of an event loop have ended with that loop."""
        for core in self.cores:
            core.close()
        if isinstance(self.given, Client | Cluster):
            self.given.close()


def _with_jobs(client: object) -> AnyClient:
    """A client that a cluster has made from a DSN has no jobs yet."""
    if isinstance(client, Client | AsyncClient):
        return client
    made: AnyClient = (Client if hasattr(client, "__enter__") else AsyncClient).over(client.shell)  # type: ignore[attr-defined]
    return made
