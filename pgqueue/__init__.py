"""pgqueue: a task queue that lives in the PostgreSQL you already run.

import pgqueue

with pgqueue.Client() as client:
    mail = client.queue("mail")
    mail.put({"to": "ada@example.org"}, delay=60)
    task = mail.take(timeout=3)
    ...
    task.ack()
"""

from .aclient import AsyncClient, AsyncQueue, AsyncTask
from .calls.nodes import Member, Node, NodeEvent
from .calls.routes import Death
from .calls.statuses import TaskStatus
from .channels import AsyncSubscription, Subscription
from .client import Client, Queue, Task
from .errors import (
    BadData,
    BadVersion,
    ClosedError,
    ConnectionLost,
    EphemeralParent,
    Error,
    ExchangeExists,
    LockLost,
    LockTimeout,
    NodeError,
    NodeExists,
    NoExchange,
    NoNode,
    NoQueue,
    NotEmpty,
    QueueExclusive,
    QueueExists,
    QueueInUse,
    ResultUnknown,
    SchemaError,
    ServerError,
    TakeLost,
    TaskError,
    TaskFailed,
    TaskIdRequired,
    TaskNotFound,
    TaskNotTaken,
    TaskTakenByOther,
    Unroutable,
)
from .locks import AsyncElection, AsyncLock, Election, Lock
from .nodes import AsyncMembership, AsyncMembersWatch, AsyncWatch, Membership, MembersWatch, Watch
from .worker import Worker

__all__ = [
    "AsyncClient",
    "AsyncElection",
    "AsyncLock",
    "AsyncMembersWatch",
    "AsyncMembership",
    "AsyncQueue",
    "AsyncSubscription",
    "AsyncTask",
    "AsyncWatch",
    "BadData",
    "BadVersion",
    "Client",
    "ClosedError",
    "ConnectionLost",
    "Death",
    "Election",
    "EphemeralParent",
    "Error",
    "ExchangeExists",
    "Lock",
    "LockLost",
    "LockTimeout",
    "Member",
    "MembersWatch",
    "Membership",
    "NoExchange",
    "NoNode",
    "NoQueue",
    "Node",
    "NodeError",
    "NodeEvent",
    "NodeExists",
    "NotEmpty",
    "Queue",
    "QueueExclusive",
    "QueueExists",
    "QueueInUse",
    "ResultUnknown",
    "SchemaError",
    "ServerError",
    "Subscription",
    "TakeLost",
    "Task",
    "TaskError",
    "TaskFailed",
    "TaskIdRequired",
    "TaskNotFound",
    "TaskNotTaken",
    "TaskStatus",
    "TaskTakenByOther",
    "Unroutable",
    "Watch",
    "Worker",
]

__version__ = "0.1.0"
