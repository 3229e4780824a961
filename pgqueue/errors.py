"""The errors that pgqueue raises, as a tree.

    Error
      ServerError, SetupError, SchemaError, NotRunning, NotAllowed, ClosedError, QuotaReached, NoIdentity
      ConnectionLost
        CallTimeout
      LockBlocked, LockTimeout, LockLost, SoftTimeLimit, TimeLimitExceeded, ProcessDied
      QueueExists, NoQueue, QueueExclusive, QueueInUse, QueueNotListed, DeadlineSoon, NotIgnored
      PutRefused
        QueueFull, QueueDraining, DataTooBig, KeyExists, KeyTaken, LimitElsewhere
      ExchangeExists, NoExchange, Unroutable, NoSchedule, BatchError, ClaimDoesNotExist, ClusterError
      TaskError                         about one task
        TakeLost                        the take is over, so it cannot settle the task
          TaskNotFound, TaskNotTaken, TaskTakenByOther
            TaskElsewhere
        MessageIsClaimed, MessageNotClaimed, MessageNotClaimedBy
        TaskIdRequired, TaskBusy, TaskFailed, TaskCancelled, ResultUnknown
      NodeError                         about one node
        NodeExists, NoNode, BadVersion, NotEmpty, EphemeralParent

An argument that is not valid raises ValueError: the caller's code is wrong, and no retry will help. Its subclass
BadData names the place in a task's data, and BadArguments, a subclass of that, the argument of a job. Errors of the
database that this tree does not cover stay psycopg.Error.
"""

from __future__ import annotations


class Error(Exception):
    """The base of every error that pgqueue raises on purpose."""


class ServerError(Error):
    """The server cannot be reached, or the embedded server cannot be started. The message names the remedy."""


class ConnectionLost(Error):
    """The connection broke during a call, so it is unknown whether the call took effect.

    A put may be repeated; that may make a duplicate. After an ack, release or bury the client no longer holds the task:
    it has ended, or is delivered again.
    """


class CallTimeout(ConnectionLost):
    """The server did not answer within the client's call_timeout, so it is unknown whether the call took effect.

    The client has asked the server to cancel the statement. If the message says that the server did so, the call
    changed nothing. Otherwise the connection is closed.
    """


class SetupError(Error):
    """A pooler, the role or the database is set up so that pgqueue cannot work. The message names the remedy."""


class SchemaError(Error):
    """The schema in the database does not fit this library. The message names the command that mends it."""


class ClosedError(Error):
    """The client is closed."""


class QuotaReached(Error):
    """The role has made as many of these things as it may. The schema's owner sets the number: set_quota in SQL."""


class NotRunning(Error):
    """Queues do not work here: the server is a standby, or the server or this transaction is read-only."""


#: The errors after which the same call may succeed later: the server was away, is a standby, or the connection broke.
#: The client reconnects by itself. After ConnectionLost the call may have taken effect.
CONNECTION_ERRORS = (ServerError, ConnectionLost, NotRunning)


class NotAllowed(Error, PermissionError):
    """The role of the connection lacks the right to this call. Nothing was changed.

    Attributes:
        hint: the remedy, for the owner of the schema. It is part of the message too.
    """

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(f"{message}. {hint}" if hint else message)
        self.hint = hint


class QueueExists(Error):
    """A queue of this name already exists."""


class NoQueue(Error):
    """There is no queue of this name."""


class QueueExclusive(Error):
    """The queue belongs to another client, and only that client may take from it."""


class QueueInUse(Error):
    """The queue was not deleted: it holds tasks, or a client holds one of its tasks or waits for one."""


class DeadlineSoon(Error):
    """A take of this client ends within a second: settle the task or touch it. As beanstalkd's DEADLINE_SOON."""


class NotIgnored(Error):
    """The last queue of a watch list cannot be ignored. As beanstalkd's NOT_IGNORED."""


class PutRefused(Error):
    """The queue refuses this put. Nothing was changed."""


class QueueFull(PutRefused):
    """The queue is at its capacity. Put again later, or with a timeout to wait for room."""


class QueueDraining(PutRefused):
    """The queue is draining and refuses puts. As beanstalkd's DRAINING."""


class DataTooBig(PutRefused):
    """The data is larger than the queue's max_size, or than 64 MB. As beanstalkd's JOB_TOO_BIG."""


class KeyExists(PutRefused):
    """The queue has a task with this key that is not done, and the put was called with if_exists="error"."""


class KeyTaken(PutRefused):
    """The task with this key is taken, so the put cannot replace it."""


class LimitElsewhere(PutRefused):
    """Another server keeps the task's limit: put the task there, as a Cluster does. See Limits.set.

    Attributes:
        server: the number of that server.
        queue: the name of the task's queue.
        job: the name of the task's job; None if it has none.
    """

    def __init__(self, message: str, server: int, queue: str, job: str | None) -> None:
        super().__init__(message)
        self.server = server
        self.queue = queue
        self.job = job


class QueueNotListed(Error):
    """The queue's option `listed` is off, so its messages cannot be listed."""


class ClaimDoesNotExist(Error):
    """The claim of messages is over, was deleted, or never existed. `claim_id` is the id that was given."""

    def __init__(self, message: str, claim_id: int | str) -> None:
        super().__init__(message)
        self.claim_id = claim_id


class ExchangeExists(Error):
    """An exchange of this name exists already, with another type, or it belongs to another client's session."""


class NoExchange(Error):
    """There is no exchange of this name."""


class NoSchedule(Error):
    """There is no schedule of this name."""


class Unroutable(Error):
    """No binding routes the published message to a queue. Nothing was put."""


class NoIdentity(Error):
    """The identity is unknown, or its client was gone for too long, and its session and takes were given up."""


class LockBlocked(Error):
    """Another backend holds an advisory lock of pgqueue's own, and the call waited for it in vain. Nothing was changed.

    The message names the lock's purpose, and the holder's process id and role. It may be a client of pgqueue with a
    long transaction, or a role that has nothing to do with pgqueue: `pgqueue health` tells these (`foreign_locks`).
    """


class LockTimeout(Error, TimeoutError):
    """A lock was not granted in time. The view pgqueue.locks shows its holder."""


class LockLost(Error):
    """A lock that was held is no longer held. Another client may hold it now: stop the work that it protected."""


class SoftTimeLimit(Error):
    """Raised in a handler whose soft time limit has passed: it is to finish before its time limit ends it."""


class TimeLimitExceeded(Error):
    """A handler was over its time limit, and was ended or written off. A Retry can name it; no handler gets it."""


class ProcessDied(Error):
    """The process in which a handler ran has ended before the handler: it crashed, left, or was killed."""


class BadData(ValueError):
    """A task's data cannot be stored as JSON.

    Attributes:
        path: the place in the data, for example `$.lines[3].price`; put_many adds `[index]` before the `$`.
    """

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason


class BadArguments(BadData):
    """The arguments of a job's task are missing, unknown or of the wrong type.

    Attributes:
        job: the job's name.
        path: the place in the task's data, for example `$.args.order.price`.
    """

    def __init__(self, job: str, path: str, reason: str) -> None:
        super().__init__(path, reason)
        self.args = (f"job {job}: {path.removeprefix('$.')}: {reason}",)
        self.job = job


class SessionDead(Error):
    """Internal: a claim was refused because its session is not alive. Takes open a new one and try again."""


class TaskError(Error):
    """An error about one task. `task_id` is its id."""

    def __init__(self, message: str, task_id: int | None = None) -> None:
        super().__init__(message)
        self.task_id = task_id


class TaskIdRequired(TaskError, ValueError):
    """The task id is missing or not valid. It is an int, or a string of decimal digits."""


class TakeLost(TaskError):
    """The take is over, so it cannot settle the task. Nothing was changed."""


class TaskNotFound(TakeLost):
    """The task does not exist: it was acked, deleted, or never put."""


class TaskElsewhere(TaskNotFound):
    """The task belongs to another server, as its id tells: call that one. See `pgqueue migrate up --server`."""


class TaskNotTaken(TakeLost):
    """The task is not taken: its deadline passed, or it was released."""


class TaskTakenByOther(TakeLost):
    """Another take holds the task.

    Attributes:
        holder: the client of that take, as in the view pgqueue.sessions: host, process id and program.
    """

    def __init__(self, message: str, task_id: int, holder: str) -> None:
        super().__init__(message, task_id)
        self.holder = holder


class MessageIsClaimed(TaskError):
    """The message is claimed or taken. A claimed message can only be deleted together with its claim's id."""


class MessageNotClaimed(TaskError):
    """The message was to be deleted with a claim, but it is not claimed."""


class MessageNotClaimedBy(TaskError):
    """The message was to be deleted with a claim, but another claim holds it.

    Attributes:
        claim_id: the id that was given.
    """

    def __init__(self, message: str, task_id: int, claim_id: int) -> None:
        super().__init__(message, task_id)
        self.claim_id = claim_id


class TaskBusy(TaskError):
    """The task cannot be taken now: its lane is busy, or another transaction is changing it."""


class TaskFailed(TaskError):
    """The task has failed for good, so it has no result.

    Attributes:
        error: the error of its last attempt.
    """

    def __init__(self, task_id: int, error: str) -> None:
        super().__init__(f"task {task_id} failed: {error}", task_id)
        self.error = error


class TaskCancelled(TaskError):
    """The task was cancelled, so it has no result.

    Attributes:
        reason: of the call that cancelled it.
    """

    def __init__(self, task_id: int, reason: str) -> None:
        super().__init__(f"task {task_id} was cancelled: {reason}", task_id)
        self.reason = reason


class ResultUnknown(TaskError):
    """The task is done or gone, and no result is kept: it expired, or was not kept, or the task never existed."""


def refusal(task_id: int, state: str | None, problem: str, holder: str | None, me: str) -> TakeLost:
    """The error for a row of a settling function that reports a problem."""
    if problem == "not found":
        return TaskNotFound(f"task {task_id} was not found: it was acked, deleted or never put", task_id)
    if problem == "not taken":
        return TaskNotTaken(f"task {task_id} is not taken: it is {state}", task_id)
    return TaskTakenByOther(f"task {task_id} is taken by {holder}, not by this take of {me}", task_id, holder or "?")


class BatchError(Error):
    """There is no such batch, or it is open where the call needs a closed one, or the reverse. Nothing was changed."""


class ClusterError(Error):
    """The servers of a cluster are not as the call needs them: the text names the server. Nothing was changed."""


class NodeError(Error):
    """An error about one node. Nothing was changed.

    Attributes:
        path: the node's path.
    """

    def __init__(self, message: str, path: str) -> None:
        super().__init__(message)
        self.path = path


class NodeExists(NodeError):
    """A node of this path already exists."""


class NoNode(NodeError):
    """No node of this path exists, or, for a create, its parent does not exist."""


class BadVersion(NodeError):
    """The node is not at the given version: another client has changed it since."""


class NotEmpty(NodeError):
    """The node has children, so it cannot be deleted."""


class EphemeralParent(NodeError):
    """The parent is ephemeral, and an ephemeral node cannot have children."""
