"""The application of the demo, as its worker processes run it: `pgqueue worker pgqueue.demo.handlers:client`."""

from __future__ import annotations

import time
from typing import Any

import pgqueue
from pgqueue.demo.files import digest

client = pgqueue.Client()
results = client.queue("demo-results")


@client.handler("demo")
def handle(data: Any) -> None:
    began = time.time()
    lines, sha256 = digest(data["path"])
    # This put has a transaction of its own: if the worker dies between the put and the ack, there is a second result
    # (at least once). If the result is a row of your own, use task.ack(conn=...) in the transaction that writes the
    # row: then it is written exactly once.
    results.put({**data, "lines": lines, "sha256": sha256, "began": began})
