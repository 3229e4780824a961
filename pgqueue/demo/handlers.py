"""The application of the demo, as its worker processes run it: `pgqueue worker pgqueue.demo.handlers:client`."""

from __future__ import annotations

import os
import time
from typing import Any

import pgqueue
from pgqueue.demo.files import digest

client = pgqueue.Client()
results = client.queue("demo-results")


@client.handler("demo")
def handle(data: Any) -> None:
    began = time.monotonic()
    result = {"run": data["run"], "path": data["path"], "worker": os.getpid()}
    try:
        result["lines"], result["sha256"] = digest(data["path"])
    except OSError as error:
        result["error"] = str(error)
    time.sleep(max(0.0, began + data["seconds"] - time.monotonic()))  # as if it were work: the demo is to be watched
    # This put has a transaction of its own: if the worker dies between the put and the ack, there is a second result
    # (at least once). If the result is a row of your own, use task.ack(conn=...) in the transaction that writes the
    # row: then it is written exactly once.
    results.put(result)
