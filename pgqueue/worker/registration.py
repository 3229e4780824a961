"""The registration of a worker in the database: its queues and jobs, for people and for the check `unserved`.

It belongs to the session of the client, and so to the listener's connection, on which the calls run. A session may be
given up while its process lives, for example after an outage that was longer than its grace. So the call is kept, and
repeated on each new connection; under a session that was resumed this changes nothing.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from .._calls.workers import register_worker, unregister_worker
from .._engine.listener import Listener

_numbers = itertools.count(1)


class Registration:
    """Registers at once, and until end(). Does not wait, and does not raise."""

    def __init__(
        self,
        listener: Listener,
        queues: Sequence[str],
        jobs: Sequence[str],
        concurrency: int,
        limits: Mapping[str, Any],
        version: str,
    ) -> None:
        self._listener = listener
        self._number = next(_numbers)
        self._kept = listener.keep(register_worker(self._number, queues, jobs, concurrency, limits, version))

    def end(self) -> None:
        """The worker stops, or continues with other handlers."""
        self._kept.drop()
        self._listener.later(unregister_worker(self._number))
