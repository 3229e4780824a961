"""A worker in a thread of the test."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from pgqueue import Worker


@contextmanager
def running(worker: Worker) -> Iterator[Worker]:
    """The worker runs within this block. Then it is stopped, and has to end, and not by an error."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            worker.run()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield worker
    finally:
        worker.stop()
        thread.join(30)
        assert not thread.is_alive()
    assert errors == []
