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

    The start fails if the database cannot be reached or its schema does not fit, rather than the first request. At the
    end the client is closed: what it has taken is given back, and who still waits gets a ClosedError.

    Args:
        client: an AsyncClient; or a Client, for views of both kinds, which is closed with its `aio`.
        inner: another lifespan, which begins once the client works and ends before it is closed. Its state is the
            application's.

    Raises:
        ServerError, SchemaError: at the start.
        ClosedError: at the start, of a client that is closed: an application that starts again needs another one.
    """

    @asynccontextmanager
    async def life(app: Any) -> AsyncIterator[Any]:
        blocking, own = (client, client.aio) if isinstance(client, Client) else (nullcontext(), client)
        with blocking:
            async with own:
                await asyncio.to_thread(own.shell.core.conninfo)  # connects, and checks what is there
                async with inner(app) if inner else nullcontext() as state:
                    yield state

    return life
