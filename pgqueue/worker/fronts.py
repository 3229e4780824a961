"""The client or the cluster that a worker serves. It has the handlers and jobs, and one server or several."""

from __future__ import annotations

from collections.abc import Callable

from .._engine.core import Core
from ..errors import Error
from ..jobs.clients import AnyClient, AsyncCluster, Client, Cluster


class Front:
    """`client`: with the handlers; `cores`: of its servers, which a cluster may replace (renewed)."""

    def __init__(self, client: AnyClient) -> None:
        self.client = client
        clients = client.clients if isinstance(client, Cluster | AsyncCluster) else [client]
        self.cores: list[Core] = [one.shell.core for one in clients]

    def renewed(self) -> Front:
        """With the servers that the cluster has by now; the same one if they are as before."""
        new = Front(self.client)
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

    def close(self) -> None:
        """Close the clients. The connections of an event loop have ended with that loop."""
        for core in self.cores:
            core.close()
        if isinstance(self.client, Client | Cluster):
            self.client.close()
