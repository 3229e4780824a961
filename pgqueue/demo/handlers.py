"""The application of the demo, as its worker processes run it: `pgqueue worker pgqueue.demo.handlers:client`."""

from __future__ import annotations

import time
from typing import Any

import pgqueue
from pgqueue.demo.files import digest

client = pgqueue.Client()
results = client.queue("demo-results")


@client.handler("demo")
def handle(data: Any, task: pgqueue.Task) -> None:
    began = time.time()
    lines, sha256 = digest(data["path"])
    # A put of its own: a worker that dies between it and the ack makes a second result, at least once. Where the
    # result is a row of yours, task.ack(conn=...) in the transaction that writes it makes that exactly once.
    results.put({**data, "lines": lines, "sha256": sha256, "began": began, "attempts": task.attempts})
