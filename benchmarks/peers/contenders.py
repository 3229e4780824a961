"""The queues that are measured, and what each is installed from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Contender:
    """`tasks`: how many are put and drained. Of a slow queue fewer, so that a round takes seconds."""

    name: str
    program: str  # a file in programs/
    packages: tuple[str, ...]  # none: it runs in this interpreter
    store: Literal["postgresql", "redis", "rabbitmq"] = "postgresql"
    tasks: int = 20_000


OURS = "pgqueue"

CONTENDERS = (
    Contender(OURS, "pgqueue_peer.py", ()),
    Contender("PgQueuer", "pgqueuer_peer.py", ("pgqueuer[asyncpg]", "psycopg[binary]", "uvloop")),
    Contender("pgmq", "pgmq_peer.py", ("pgmq", "psycopg[binary]")),
    Contender("procrastinate", "procrastinate_peer.py", ("procrastinate", "psycopg[binary]"), tasks=5_000),
    Contender("Celery, Redis", "celery_peer.py", ("celery[redis]", "hiredis"), "redis", 5_000),
    Contender("Celery, RabbitMQ", "celery_peer.py", ("celery[redis]",), "rabbitmq", 5_000),
)
