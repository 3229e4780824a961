"""Connections of `pgqueue dashboard` whose request does not come are ended, and others are not."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvicorn

from pgqueue.dashboard.silence import Attentive

pytestmark = pytest.mark.once

SILENCE = 0.3
WHOLE = b"GET / HTTP/1.1\r\nHost: here\r\n\r\n"


class Quick(Attentive):
    silence = SILENCE


class Patient(Attentive):
    silence = 5 * SILENCE


async def app(scope: Any, receive: Any, send: Any) -> None:
    """Answers a GET at once, reads the body of a POST first, and sends at /events now and then."""
    if scope["type"] != "http":
        return
    while scope["method"] == "POST" and (await receive()).get("more_body"):
        pass
    stream = scope["path"] == "/events"
    length = [] if stream else [(b"content-length", b"2")]
    await send({"type": "http.response.start", "status": 200, "headers": length})
    for _ in range(20 if stream else 0):
        await asyncio.sleep(SILENCE / 5)
        await send({"type": "http.response.body", "body": b"tick\n", "more_body": True})
    await send({"type": "http.response.body", "body": b"ok"})


@asynccontextmanager
async def serving(http: type[Attentive] = Quick) -> AsyncIterator[int]:
    config = uvicorn.Config(app, port=0, http=http, log_level="error", lifespan="off", timeout_keep_alive=60)
    server = uvicorn.Server(config)
    running = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    yield server.servers[0].sockets[0].getsockname()[1]
    server.should_exit = True
    await running


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"GET / HT",
        WHOLE[:-2] + b"X: a",
        WHOLE + b"GET / HTTP/1.1\r\n",
        b"POST / HTTP/1.1\r\nHost: here\r\nContent-Length: 10\r\n\r\nabc",
    ],
    ids=["nothing", "half a line", "half a header", "half of the second one", "half a body"],
)
async def test_a_connection_whose_request_does_not_come_is_ended(sent: bytes) -> None:
    async with serving() as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(sent)
        began = time.monotonic()
        await asyncio.wait_for(reader.read(), 30)
        assert time.monotonic() - began >= SILENCE * 0.9
        writer.close()


@pytest.mark.slow
async def test_a_long_answer_goes_on() -> None:
    async with serving() as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(WHOLE.replace(b"/ ", b"/events ", 1))
        assert (await asyncio.wait_for(reader.readuntil(b"ok"), 30)).count(b"tick") == 20
        writer.close()


@pytest.mark.slow
async def test_slow_requests_one_after_another_are_answered() -> None:
    async with serving(Patient) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for _ in range(11):  # for more than twice the silence
            await asyncio.sleep(SILENCE)
            writer.write(WHOLE)
            assert await asyncio.wait_for(reader.readuntil(b"ok"), 30)
        writer.close()
