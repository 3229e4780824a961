"""The client of a command: it does not wait for an absent server, but says so at once, as psql does."""

from __future__ import annotations

from .. import AsyncCluster, Client, Cluster
from ..jobs.clients import AnyClient


def connect(dsn: str | None) -> Client:
    """A client whose first call makes one attempt to connect."""
    client = Client(dsn)
    at_once(client)
    return client


def at_once(client: AnyClient) -> None:
    """Have the first call of a client, or to a server of a cluster, make one attempt to connect."""
    for one in client.clients if isinstance(client, Cluster | AsyncCluster) else [client]:
        one.shell.core.patience = 0.0
