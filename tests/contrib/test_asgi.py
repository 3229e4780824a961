"""The ASGI helper: what begins and ends with an application; and the Starlette example over HTTP."""

from __future__ import annotations

import asyncio
import json
import signal
from contextlib import asynccontextmanager
from urllib.error import HTTPError

import pytest
from commands import started
from sites import CHECKOUT, events, free_port, serving
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route
from statements import column, value

import pgqueue
from pgqueue.contrib.asgi import lifespan

pytestmark = pytest.mark.once

SESSIONS = "SELECT count(*) FROM pgqueue.sessions"


# --- the helper


@pytest.mark.parametrize("kind", [pgqueue.AsyncClient, pgqueue.Client])
async def test_the_client_works_within_the_lifespan_and_is_closed_at_its_end(kind, dsn, db):
    client = kind(dsn, poll=None)
    own = client.aio if isinstance(client, pgqueue.Client) else client
    async with lifespan(client)("app") as state:
        assert state is None
        await own.queue("q").put("x")
        assert (await own.queue("q").take(5)).data == "x"
        if own is not client:
            await asyncio.to_thread(client.queue("q").put, "y")
        waiting = asyncio.ensure_future((await own.subscribe("news")).get())
    with pytest.raises(pgqueue.ClosedError):
        await waiting
    with pytest.raises(pgqueue.ClosedError):
        await own.queue("q").put("z")
    assert set(column(db, "SELECT state FROM pgqueue.tasks")) == {"ready"}
    assert value(db, SESSIONS) == 0


async def test_another_lifespan_is_within_it(dsn):
    client = pgqueue.AsyncClient(dsn, poll=None)

    @asynccontextmanager
    async def inner(app):
        await client.queue("q").put(app)
        yield {"of": app}
        await client.queue("q").put("the end")

    async with lifespan(client, inner)("the app") as state:
        assert state == {"of": "the app"}
        assert (await client.queue("q").pop())[0].data == "the app"
    async with pgqueue.AsyncClient(dsn) as other:
        assert (await other.queue("q").pop())[0].data == "the end"


async def test_an_application_without_its_database_does_not_start(empty_dsn, dsn):
    with pytest.raises(pgqueue.SchemaError, match="pgqueue migrate up"):
        async with lifespan(pgqueue.AsyncClient(empty_dsn))("app"):
            pytest.fail("it started")
    client = pgqueue.AsyncClient(dsn)
    async with lifespan(client)("app"):
        pass
    with pytest.raises(pgqueue.ClosedError):
        async with lifespan(client)("app"):
            pytest.fail("it started again")


async def asked(app, path, body):
    """The status and the answer of a POST, as a server asks for it."""
    sent = []

    async def receive():
        return {"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}

    async def send(message):
        sent.append(message)

    await app({"type": "http", "method": "POST", "path": path, "query_string": b"", "headers": []}, receive, send)
    return sent[0]["status"], json.loads(sent[1]["body"])


def with_add(client):
    """The job, as each process registers it with its client."""

    @client.job("sums", name="add", keep_result=60)
    async def add(numbers: list[float]) -> float:
        return sum(numbers)

    return add


async def test_a_view_puts_a_job(dsn, db):
    """Within the lifespan, as Starlette has it; the worker has another client, as in another process."""
    client, own = pgqueue.AsyncClient(dsn), pgqueue.Client(dsn)
    add = with_add(client)
    with_add(own)

    async def order(request):
        try:
            task = await add.aput(await request.json())
        except pgqueue.BadArguments as error:
            return JSONResponse(str(error), status_code=422)
        return JSONResponse(await client.results.get(task, timeout=30), status_code=202)

    app = Starlette(lifespan=lifespan(client), routes=[Route("/sums", order, methods=["POST"])])
    worker = pgqueue.Worker(own)
    async with app.router.lifespan_context(app):
        working = asyncio.create_task(asyncio.to_thread(worker.run))
        assert await asked(app, "/sums", [1, 2.5]) == (202, 3.5)
        status, reason = await asked(app, "/sums", ["one"])
        worker.stop()
        await working
    assert (status, "numbers" in reason) == (422, True)
    own.close()
    assert value(db, SESSIONS) == 0


# --- the example


@pytest.fixture
def site(dsn):
    port = free_port()
    command = ["uvicorn", "examples.asgi_app:app", "--port", str(port), "--timeout-graceful-shutdown", "1"]
    with serving(command, port, settings={"PGQUEUE_DSN": dsn}) as it:
        yield it


@pytest.mark.slow
def test_the_example(site, dsn, db):
    """Sums come by long poll and as events; and a stream under way does not keep the server from its end."""
    with (
        started("worker", "examples.asgi_app:client", settings={"PGQUEUE_DSN": dsn}, cwd=CHECKOUT) as worker,
        site.open("/events") as stream,
    ):
        assert stream.readline() + stream.readline() == b": subscribed\n\n"
        for numbers, total in ([1, 2, 3], 6), ([1.5, 1], 2.5):
            status, answer = site.post("/sums", numbers)
            assert status == 202
            assert json.loads(site.get(f"/sums/{json.loads(answer)['id']}")) == {"sum": total}
        assert events(stream, 2) == [[b"data: 6\n"], [b"data: 2.5\n"]]
        with pytest.raises(HTTPError, match="404"):
            site.get("/sums/4711")
        for process in (worker, site.process):
            process.send_signal(signal.SIGTERM)
            process.wait(30)
    assert value(db, SESSIONS) == 0
