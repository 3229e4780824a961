"""Works on a queue with handlers that hang until they are cancelled.

    cancellable.py DSN KIND

KIND is async; thread: a handler that looks at task.cancelled; or deaf: one that does not. A line {"begun": id} is
printed when a handler begins, and {"told": id, "at": seconds since the epoch} when it sees that its task is cancelled.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import time
from typing import Any

import pgqueue


def say(**line: Any) -> None:
    print(json.dumps(line), flush=True)


def main(dsn: str, kind: str) -> None:
    client = pgqueue.Client(dsn, session_grace=0)

    async def hang_async(data: Any, task: pgqueue.AsyncTask) -> None:
        say(begun=task.id)
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            say(told=task.id, at=time.time())
            raise

    def hang(data: Any, task: pgqueue.Task) -> None:
        cancelled = task.cancelled
        say(begun=task.id)
        if kind == "thread" and cancelled.wait(600):
            say(told=task.id, at=time.time())
            raise InterruptedError
        time.sleep(600)

    worker = pgqueue.Worker(client, {"q": hang_async if kind == "async" else hang}, grace=0, max_attempts=3)
    threading.Thread(target=lambda: (sys.stdin.read(), worker.stop()), daemon=True).start()
    worker.run()
    client.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
