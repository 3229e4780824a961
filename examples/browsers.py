"""Long polls that end when the browser has gone, for the examples in Flask."""

from __future__ import annotations

import select
import socket
import time

from flask import Response, request

import pgqueue

LOOK = 0.5  # seconds between looks at whether the browser is still there


def long_poll(client: pgqueue.Client, channel: str, seconds: float) -> Response:
    """The next payload of a channel, or 204 for "ask again"."""
    end = time.monotonic() + seconds
    with client.subscribe(channel) as posts:  # wait() in slices would miss payloads between two of them
        while (left := end - time.monotonic()) > 0 and not gone():
            try:
                return Response(posts.get(min(left, LOOK)), mimetype="text/plain")
            except TimeoutError:
                pass
    return Response(status=204)


def gone() -> bool:
    """Whether the browser has closed its connection. WSGI does not say so; the server's socket does, if it has one."""
    environ = request.environ
    peer: socket.socket | None = environ.get("werkzeug.socket") or environ.get("gunicorn.socket")
    return bool(peer and select.select([peer], [], [], 0)[0] and not peer.recv(1, socket.MSG_PEEK))
