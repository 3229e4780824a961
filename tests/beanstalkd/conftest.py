"""A server for clients of beanstalkd, on the database of the test, in the test's event loop."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack

import pytest
from beans import Bean

import pgqueue
from pgqueue.beanstalkd import Server
from pgqueue.cli.beanstalkd import bound


@pytest.fixture
def client(awaiting: Callable[..., pgqueue.AsyncClient]) -> pgqueue.AsyncClient:
    """The client of the server, which tests use as well."""
    return awaiting()


@pytest.fixture
async def server(client: pgqueue.AsyncClient) -> AsyncIterator[Server]:
    server = Server(client)
    await server.start(bound("127.0.0.1:0"))
    yield server
    await server.close()


@pytest.fixture
def port(server: Server) -> int:
    number: int = server.address[1]
    return number


@pytest.fixture
async def connect(port: int) -> AsyncIterator[Callable[[], Awaitable[Bean]]]:
    """Makes connections to the server."""
    async with AsyncExitStack() as stack:

        async def make() -> Bean:
            bean = await Bean.connect(port)
            stack.callback(bean.writer.close)
            return bean

        yield make


@pytest.fixture
async def bean(connect: Callable[[], Awaitable[Bean]]) -> Bean:
    return await connect()
