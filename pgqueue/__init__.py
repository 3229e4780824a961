"""pgqueue: a task queue that lives in the PostgreSQL you already run.

import pgqueue

with pgqueue.Client() as client:
    mail = client.queue("mail")
    mail.put({"to": "ada@example.org"}, delay=60)
    task = mail.take(timeout=3)
    ...
    task.ack()
"""

from .aclient import AsyncClient
from .aqueues import AsyncQueue, AsyncTask
from .calls.changes import Change
from .calls.claims import MessageLimits, MessageStats
from .calls.management import QueueInfo
from .calls.nodes import Member, Node, NodeEvent
from .calls.picking import TaskStats
from .calls.routes import Death
from .calls.statuses import TaskStatus
from .channels import AsyncSubscription, Subscription
from .claims import AsyncClaim, Claim, MessagePage
from .client import Client
from .errors import (
    BadData,
    BadVersion,
    ClaimDoesNotExist,
    ClosedError,
    ConnectionLost,
    DataTooBig,
    DeadlineSoon,
    EphemeralParent,
    Error,
    ExchangeExists,
    KeyExists,
    KeyTaken,
    LockLost,
    LockTimeout,
    MessageIsClaimed,
    MessageNotClaimed,
    MessageNotClaimedBy,
    NodeError,
    NodeExists,
    NoExchange,
    NoIdentity,
    NoNode,
    NoQueue,
    NotEmpty,
    NotIgnored,
    NotRunning,
    PutRefused,
    QueueDraining,
    QueueExclusive,
    QueueExists,
    QueueFull,
    QueueInUse,
    QueueNotListed,
    ResultUnknown,
    SchemaError,
    ServerError,
    TakeLost,
    TaskBusy,
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
from .puts import Put
from .queues import Queue, Task
from .ranges import split_range
from .shards import AsyncShardedQueue, AsyncShards, ShardedQueue, Shards
from .watchlist import AsyncWatchList, WatchList
from .worker import Worker

__all__ = [
    "AsyncClaim",
    "AsyncClient",
    "AsyncElection",
    "AsyncLock",
    "AsyncMembersWatch",
    "AsyncMembership",
    "AsyncQueue",
    "AsyncShardedQueue",
    "AsyncShards",
    "AsyncSubscription",
    "AsyncTask",
    "AsyncWatch",
    "AsyncWatchList",
    "BadData",
    "BadVersion",
    "Change",
    "Claim",
    "ClaimDoesNotExist",
    "Client",
    "ClosedError",
    "ConnectionLost",
    "DataTooBig",
    "DeadlineSoon",
    "Death",
    "Election",
    "EphemeralParent",
    "Error",
    "ExchangeExists",
    "KeyExists",
    "KeyTaken",
    "Lock",
    "LockLost",
    "LockTimeout",
    "Member",
    "MembersWatch",
    "Membership",
    "MessageIsClaimed",
    "MessageLimits",
    "MessageNotClaimed",
    "MessageNotClaimedBy",
    "MessagePage",
    "MessageStats",
    "NoExchange",
    "NoIdentity",
    "NoNode",
    "NoQueue",
    "Node",
    "NodeError",
    "NodeEvent",
    "NodeExists",
    "NotEmpty",
    "NotIgnored",
    "NotRunning",
    "Put",
    "PutRefused",
    "Queue",
    "QueueDraining",
    "QueueExclusive",
    "QueueExists",
    "QueueFull",
    "QueueInUse",
    "QueueInfo",
    "QueueNotListed",
    "ResultUnknown",
    "SchemaError",
    "ServerError",
    "ShardedQueue",
    "Shards",
    "Subscription",
    "TakeLost",
    "Task",
    "TaskBusy",
    "TaskError",
    "TaskFailed",
    "TaskIdRequired",
    "TaskNotFound",
    "TaskNotTaken",
    "TaskStats",
    "TaskStatus",
    "TaskTakenByOther",
    "Unroutable",
    "Watch",
    "WatchList",
    "Worker",
    "split_range",
]

__version__ = "0.1.0"
