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
from .client import Client, Queue, Task
from .errors import (
    BadData,
    ClosedError,
    ConnectionLost,
    Error,
    QueueExists,
    SchemaError,
    ServerError,
    TakeLost,
    TaskError,
    TaskIdRequired,
    TaskNotFound,
    TaskNotTaken,
    TaskTakenByOther,
)
from .worker import Worker

__all__ = [
    "AsyncClient",
    "AsyncQueue",
    "AsyncTask",
    "BadData",
    "Client",
    "ClosedError",
    "ConnectionLost",
    "Error",
    "Queue",
    "QueueExists",
    "SchemaError",
    "ServerError",
    "TakeLost",
    "Task",
    "TaskError",
    "TaskIdRequired",
    "TaskNotFound",
    "TaskNotTaken",
    "TaskTakenByOther",
    "Worker",
]

__version__ = "0.1.0"
