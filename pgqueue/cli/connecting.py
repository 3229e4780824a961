"""The client of a command: it does not wait for an absent server, but says so at once, as psql does."""

from __future__ import annotations

from .. import AsyncClient, Client


def connect(dsn: str | None) -> Client:
    """A client whose first call makes one attempt to connect."""
    client = Client(dsn)
    at_once(client)
    return client


def at_once(client: Client | AsyncClient) -> None:
    """Have the first call of a client make one attempt to connect."""
    client.shell.core.patience = 0.0
