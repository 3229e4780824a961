"""The errors that pgqueue raises, as a tree.

    Error
      ServerError             the server cannot be reached, or the embedded server cannot be started
      SetupError              a pooler, the role or the database is set up so that pgqueue cannot work
      ConnectionLost          the connection broke during a call: whether the call took effect is unknown
        CallTimeout           the server did not answer within call_timeout
      SchemaError             the schema in the database is missing, or too old or too new for this library
      ClosedError             the client is closed
      NotRunning              queues do not work here: the server is a standby, or read-only
      NotAllowed              the role lacks the right (also a PermissionError; .hint)
      QueueExists             create_queue: a queue of this name exists
      NoQueue                 no queue of this name exists
      QueueExclusive          the queue belongs to another client, and only that client may take from it
      QueueInUse              delete_queue: a task of the queue is taken, or it holds tasks, or a client waits for one
      DeadlineSoon            a waiting take: another take of this client is about to reach its deadline
      NotIgnored              the last queue of a watch list cannot be ignored
      PutRefused              the queue refuses the put
        QueueFull             the queue is at its capacity
        QueueDraining         the queue is draining and refuses puts
        DataTooBig            the data is larger than the queue's max_size, or than 64 MB
        KeyExists             a task with this key exists
        KeyTaken              the task with this key is taken, so it cannot be replaced
      QueueNotListed          messages: the queue's option `listed` is off
      ClaimDoesNotExist       the claim of messages is over or never existed (.claim_id)
      ExchangeExists          the exchange exists with another type, or belongs to another client
      NoExchange              no exchange of this name exists
      Unroutable              a mandatory publish reached no queue
      NoIdentity              the identity is unknown, or its session was given up
      LimitReached            the role has made as many queues, nodes or other things as it may
      LockBlocked             another backend holds an advisory lock of pgqueue's own for too long
      LockTimeout             the lock was not granted in time (also a TimeoutError)
      LockLost                the lock is no longer held
      TaskError               about one task
        TaskIdRequired        the task id is missing or not valid (also a ValueError)
        TakeLost              the take is over, so it cannot settle the task
          TaskNotFound        the task is gone: acked, deleted, or never put
          TaskNotTaken        the task is not taken: its deadline passed, or it was released
          TaskTakenByOther    another take holds the task (.holder)
        MessageIsClaimed      a delete without a claim: the message is claimed
        MessageNotClaimed     a delete with a claim: the message is not claimed
        MessageNotClaimedBy   a delete with a claim: another claim holds the message (.claim_id: the given one)
        TaskBusy              take_id: the task's lane is busy, or a transaction is changing the task
        TaskFailed            result: the task failed for good (.error)
        ResultUnknown         result: the task is gone, and its result is not kept
      NodeError               about one node (.path)
        NodeExists            create: a node of this path exists
        NoNode                no node of this path exists, or create: the parent does not exist
        BadVersion            the node is not at the given version
        NotEmpty              delete: the node has children
        EphemeralParent       create: an ephemeral node cannot have children

An argument that is not valid raises ValueError: the caller's code is wrong, and no retry will help. Its subclass
BadData names the place in a task's data. Errors of the database that this tree does not cover stay psycopg.Error.
"""

from __future__ import annotations


class Error(Exception):
    """The base of every error that pgqueue raises on purpose."""


class ServerError(Error):
    """The server cannot be reached, or the embedded server cannot be started. The message says what to do."""


class ConnectionLost(Error):
    """The connection broke during a call, so it is unknown whether the call took effect.

    A put may be repeated; that may make a duplicate. An ack may be repeated: if the first one took effect, the second
    raises TaskNotFound.
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


class LimitReached(Error):
    """The role has made as many of these things as it may. The schema's owner sets the number: set_limit in SQL."""


class NotRunning(Error):
    """Queues do not work here: the server is a standby, or the server or this transaction is read-only."""


class NotAllowed(Error, PermissionError):
    """The role of the connection lacks the right to this call. Nothing was changed.

    Attributes:
        hint: what the owner of the schema can do about it. It is part of the message too.
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


class BadData(ValueError):
    """A task's data cannot be stored as JSON.

    Attributes:
        path: the place in the data, for example `$.lines[3].price`; put_many adds `[index]` before the `$`.
    """

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason


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


class ResultUnknown(TaskError):
    """The task is gone, and no result is kept: the result expired, or was not kept, or the task never existed."""


def refusal(task_id: int, state: str | None, problem: str, holder: str | None, me: str) -> TakeLost:
    """The error for a row of a settling function that reports a problem."""
    if problem == "not found":
        return TaskNotFound(f"task {task_id} was not found: it was acked, deleted or never put", task_id)
    if problem == "not taken":
        return TaskNotTaken(f"task {task_id} is not taken: it is {state}", task_id)
    return TaskTakenByOther(f"task {task_id} is taken by {holder}, not by this take of {me}", task_id, holder or "?")


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
