"""pgqueue: a task queue that lives in the PostgreSQL you already run.

import pgqueue

with pgqueue.Client() as client:
    mail = client.queue("mail")
    mail.put({"to": "ada@example.org"}, delay=60)
    task = mail.take(timeout=3)
    ...
    task.ack()

Errors that are caught rarely are in pgqueue.errors, the types of return values in pgqueue.types.
"""

import importlib
import logging
from typing import TYPE_CHECKING, Any

from . import errors
from ._values.printable import one_line
from ._values.version import VERSION
from .errors import (
    BadArguments,
    BadData,
    ClosedError,
    ConnectionLost,
    Error,
    KeyExists,
    LockBlocked,
    LockLost,
    LockTimeout,
    NoQueue,
    ProcessDied,
    PutRefused,
    QueueFull,
    SchemaError,
    ServerError,
    SoftTimeLimit,
    TakeLost,
    TaskFailed,
    TaskNotFound,
    TaskNotTaken,
    TaskTakenByOther,
    TimeLimitExceeded,
)

if TYPE_CHECKING:  # at run time __getattr__ imports them
    from . import types
    from ._async.batches import AsyncBatch
    from ._async.channels import AsyncSubscription
    from ._async.consumer import AsyncConsumer
    from ._async.elections import AsyncElection
    from ._async.locks import AsyncLock
    from ._async.messages import AsyncClaim
    from ._async.queue import AsyncQueue
    from ._async.task import AsyncTask
    from ._async.watchlist import AsyncWatchList
    from ._records.puts import Put
    from ._sync.batches import Batch
    from ._sync.channels import Subscription
    from ._sync.consumer import Consumer
    from ._sync.elections import Election
    from ._sync.locks import Lock
    from ._sync.messages import Claim
    from ._sync.queue import Queue
    from ._sync.task import Task
    from ._sync.watchlist import WatchList
    from ._values.ranges import split_range
    from .jobs.clients import AsyncClient, AsyncCluster, Client, Cluster
    from .jobs.job import Job
    from .jobs.limits import Rate
    from .jobs.retry import Bury, Retry, RetryLater
    from .worker import Worker
    from .worker.soft import checkpoint

__all__ = [
    "AsyncBatch",
    "AsyncClaim",
    "AsyncClient",
    "AsyncCluster",
    "AsyncConsumer",
    "AsyncElection",
    "AsyncLock",
    "AsyncQueue",
    "AsyncSubscription",
    "AsyncTask",
    "AsyncWatchList",
    "BadArguments",
    "BadData",
    "Batch",
    "Bury",
    "Claim",
    "Client",
    "ClosedError",
    "Cluster",
    "ConnectionLost",
    "Consumer",
    "Election",
    "Error",
    "Job",
    "KeyExists",
    "Lock",
    "LockBlocked",
    "LockLost",
    "LockTimeout",
    "NoQueue",
    "ProcessDied",
    "Put",
    "PutRefused",
    "Queue",
    "QueueFull",
    "Rate",
    "Retry",
    "RetryLater",
    "SchemaError",
    "ServerError",
    "SoftTimeLimit",
    "Subscription",
    "TakeLost",
    "Task",
    "TaskFailed",
    "TaskNotFound",
    "TaskNotTaken",
    "TaskTakenByOther",
    "TimeLimitExceeded",
    "WatchList",
    "Worker",
    "checkpoint",
    "errors",
    "split_range",
    "types",
]

__version__ = VERSION

#: The module of each name that is imported at its first use: a program without a worker loads none, and
#: `pgqueue --version` needs neither the client nor psycopg.
_HOMES = {
    "AsyncBatch": "._async.batches",
    "AsyncClaim": "._async.messages",
    "AsyncClient": ".jobs.clients",
    "AsyncConsumer": "._async.consumer",
    "AsyncElection": "._async.elections",
    "AsyncLock": "._async.locks",
    "AsyncQueue": "._async.queue",
    "AsyncCluster": ".jobs.clients",
    "AsyncSubscription": "._async.channels",
    "AsyncTask": "._async.task",
    "AsyncWatchList": "._async.watchlist",
    "Batch": "._sync.batches",
    "Bury": ".jobs.retry",
    "Claim": "._sync.messages",
    "Client": ".jobs.clients",
    "Consumer": "._sync.consumer",
    "Election": "._sync.elections",
    "Job": ".jobs.job",
    "Lock": "._sync.locks",
    "Put": "._records.puts",
    "Queue": "._sync.queue",
    "Rate": ".jobs.limits",
    "Retry": ".jobs.retry",
    "RetryLater": ".jobs.retry",
    "Cluster": ".jobs.clients",
    "Subscription": "._sync.channels",
    "Task": "._sync.task",
    "WatchList": "._sync.watchlist",
    "Worker": ".worker",
    "checkpoint": ".worker.soft",
    "split_range": "._values.ranges",
}

_MODULES = {"types", "jobs", "worker"}  # attributes, as if they were imported here


def __getattr__(name: str) -> Any:
    """Import a public name: Python calls this once for each, when the module does not have it yet."""
    if name in _MODULES:
        return importlib.import_module(f".{name}", __name__)
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(importlib.import_module(_HOMES[name], __name__), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


for _name in ("pgqueue", "pgqueue.alerts"):  # every logger of the library: a filter does not count for those below
    logging.getLogger(_name).addFilter(one_line)
