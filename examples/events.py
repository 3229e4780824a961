"""A Flask application with browsers that wait for events: by long poll, and by server-sent events.

    flask --app examples.events run --with-threads          # at the top of the checkout; needs flask
    curl http://127.0.0.1:5000/wait/orders                  # blocks until something is posted
    curl http://127.0.0.1:5000/events/orders                # does not end
    curl --data 'order 7 was paid' http://127.0.0.1:5000/post/orders
    psql -c "SELECT pgqueue.post('orders', 'order 8 was paid')"    # or NOTIFY orders, '...'

All browsers that wait in this process share one connection to the database.
"""

from __future__ import annotations

from collections.abc import Iterator

from flask import Flask, Response, request

import pgqueue
from pgqueue.contrib.sse import event

from .browsers import long_poll

app = Flask(__name__)
client = pgqueue.Client()  # connects at the first request, in each process for itself

LONG_POLL = 25.0  # seconds: below what proxies allow
HEARTBEAT = 0.5  # seconds between comments in a silent stream: the second write after a browser has gone fails


@app.get("/wait/<channel>")
def wait(channel: str) -> Response:
    """The next payload, or 204 if the browser should ask again."""
    return long_poll(client, channel, request.args.get("timeout", LONG_POLL, float))


@app.get("/events/<channel>")
def events(channel: str) -> Response:
    """Every payload from now on, as a browser's EventSource reads it."""
    subscription = client.subscribe(channel, on_gap=lambda reason: None)  # subscribed before the response begins

    def stream() -> Iterator[str]:
        with subscription:
            yield ": subscribed\n\n"
            gaps = 0
            while True:
                try:
                    payload = subscription.get(HEARTBEAT)
                except TimeoutError:
                    yield ": ping\n\n"
                    continue
                if subscription.gaps > gaps:
                    gaps = subscription.gaps
                    yield event("read the state anew", "gap")
                yield event(payload)

    return Response(stream(), mimetype="text/event-stream")


@app.post("/post/<channel>")
def post(channel: str) -> Response:
    client.post(channel, request.get_data(as_text=True))
    return Response(status=204)
