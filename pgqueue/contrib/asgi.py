"""A client that lives as long as an ASGI application: Starlette's, FastAPI's or Quart's."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from typing import Any, TypeAlias

from .. import AsyncClient, Client

Lifespan: TypeAlias = Callable[[Any], AbstractAsyncContextManager[Any]]


def lifespan(client: AsyncClient | Client, inner: Lifespan | None = None) -> Lifespan:
    """A lifespan for Starlette(lifespan=...) and FastAPI(lifespan=...); docs/guides/asgi.md shows Quart's two lines.

    The start fails if the database cannot be reached or its schema does not fit; otherwise the first request would. At
    the end the client is closed: its takes are released, and calls that still wait raise ClosedError.

    Args:
        client: an AsyncClient; or a Client, for views of both kinds, which is closed with its `aio`.
        inner: another lifespan. It begins once the client works and ends before the client is closed. Its state is the
            application's state.

    Raises:
        ServerError, SchemaError: at the start.
        ClosedError: at the start, if the client is closed: an application that starts again needs a new client.
    """

    @asynccontextmanager
    async def life(app: Any) -> AsyncIterator[Any]:
        blocking, own = (client, client.aio) if isinstance(client, Client) else (nullcontext(), client)
        with blocking:
            async with own:
                await asyncio.to_thread(own.shell.core.conninfo)  # connects, and checks the schema
                async with inner(app) if inner else nullcontext() as state:
                    yield state

    return life
