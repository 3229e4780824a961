"""Dramatiq on pgqueue: a broker, a backend for results, and one for rate limiters and barriers.

    broker = PgqueueBroker(url="postgresql://app@db.example.org/shop")
    broker.add_middleware(Results(backend=PgqueueResultBackend(client=broker.client)))
    dramatiq.set_broker(broker)

From the ground up: `clients` (the client of a broker or backend), `messages` (a message as a task's data), `consumers`
(taking and settling) and `broker`; `results`; `limits` and its `statements`.
"""

from __future__ import annotations

try:
    from .broker import PgqueueBroker
    from .limits import PgqueueRateLimiterBackend
    from .results import PgqueueResultBackend
except ImportError as error:
    raise ImportError("this needs Dramatiq: pip install 'pgqueue-core[dramatiq]'") from error

__all__ = ["PgqueueBroker", "PgqueueRateLimiterBackend", "PgqueueResultBackend"]
