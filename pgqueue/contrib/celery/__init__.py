"""Celery on pgqueue: a transport for its broker, and a backend for its results.

    app = Celery("shop", broker="pgqueue://app@db.example.org/shop", backend="pgqueue://app@db.example.org/shop")

From the ground up: `registration` (the transport's name in kombu), `urls` and `clients` (one client a URL). The broker:
`messages` (a message as a task's data), `declaring` and `channels` (the verbs of AMQP), and `transport` (connections,
and waiting). The results: `statements`, `waiting` and `results`.
"""

from __future__ import annotations

try:
    from . import registration as registration
except ImportError as error:
    raise ImportError("this needs Celery: pip install 'pgqueue-core[celery]'") from error
