"""A Starlette application with workers that compute sums: awaited, by long poll, and as server-sent events.

    uvicorn examples.asgi_app:app --timeout-graceful-shutdown 3     # at the top of the checkout
    pgqueue worker examples.asgi_app:client                         # in another terminal
    curl --json '[1, 2, 3]' http://127.0.0.1:8000/sums              # {"id": 1}
    curl http://127.0.0.1:8000/sums/1                               # waits until it is done: {"sum": 6}
    curl http://127.0.0.1:8000/events                               # does not end: each sum, once it is done

Each waiting browser costs one coroutine; all of them together cost one connection to the database.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

import pgqueue
from pgqueue.contrib.asgi import lifespan
from pgqueue.contrib.sse import event

client = pgqueue.AsyncClient()  # PGQUEUE_DSN names the database
sums = client.queue("sums")

LONG_POLL = 25.0  # seconds: below what proxies allow
HEARTBEAT = 0.5  # seconds between comments in a silent stream: a write after a browser has gone fails


@client.handler("sums", keep_result=3600)
async def add(numbers: list[float]) -> float:
    await asyncio.sleep(0.05)  # stands for hard work
    total = sum(numbers)
    await client.post("sums", str(total))
    return total


async def order(request: Request) -> Response:
    task = await sums.put(await request.json())
    return JSONResponse({"id": task.id}, status_code=202)


async def fetch(request: Request) -> Response:
    """The sum, or 204 if the browser should ask again."""
    waiting = asyncio.ensure_future(client.results.get(request.path_params["id"], LONG_POLL))
    gone = asyncio.ensure_future(disconnected(request))
    try:
        await asyncio.wait((waiting, gone), return_when=asyncio.FIRST_COMPLETED)
        return JSONResponse({"sum": await waiting}) if waiting.done() else Response(status_code=204)
    except TimeoutError:
        return Response(status_code=204)
    except pgqueue.errors.ResultUnknown:
        return Response(status_code=404)
    finally:
        waiting.cancel()
        gone.cancel()


async def disconnected(request: Request) -> None:
    """Returns once the browser has gone."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def events(request: Request) -> Response:
    """Every sum from now on, as a browser's EventSource reads it."""
    subscription = await client.subscribe("sums")  # before the response begins, so that no sum is missed

    async def stream() -> AsyncIterator[str]:
        async with subscription:
            yield ": subscribed\n\n"
            while True:
                try:
                    yield event(await subscription.get(HEARTBEAT))
                except TimeoutError:
                    yield ": ping\n\n"

    return StreamingResponse(stream(), media_type="text/event-stream")


app = Starlette(
    lifespan=lifespan(client),
    routes=[
        Route("/sums", order, methods=["POST"]),
        Route("/sums/{id:int}", fetch),
        Route("/events", events),
    ],
)
