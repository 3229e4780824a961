"""The errors that pgqueue raises, one small tree.

    Error
      ServerError             no server can be reached or, embedded, started
      ConnectionLost          the connection broke during a call: whether it took effect is unknown
      SchemaError             the schema in the database is missing, or too old or too new for this library
      ClosedError             the client is closed
      NotRunning              queues do not work here: the server is a standby, or read-only
      QueueExists             create_queue of a name that is there already
      NoQueue                 there is no queue of this name
      QueueExclusive          a take from a queue that belongs to another client
      QueueInUse              delete_queue: a task of it is taken, or it is not empty or is waited for
      DeadlineSoon            a waiting take: one that this client has taken is about to reach its deadline
      NotIgnored              a watch list does not ignore the last of its queues
      PutRefused              a put that the queue does not take, as it is or for now
        QueueFull             it is at its capacity
        QueueDraining         nothing is put into it any more
        DataTooBig            the data is over the queue's max_size
        KeyExists             there is a task with that key
        KeyTaken              there is one, it is taken, and so it cannot be replaced
      QueueNotListed          messages: the queue's option `listed` is off
      ClaimDoesNotExist       there is no such claim of messages, or it is over (.claim_id)
      ExchangeExists          declare_exchange: it is there as another type, or another client's
      NoExchange              there is no exchange of this name
      Unroutable              a mandatory publish went to no queue
      NoIdentity              nobody has this identity any more
      LockTimeout             a lock was not granted in time (also a TimeoutError)
      LockLost                a lock that was held is held no more
      TaskError               about one task
        TaskIdRequired        no task id was given, or not one (also a ValueError)
        TakeLost              the take that was presented does not count
          TaskNotFound        the task is gone: acked, deleted, or never there
          TaskNotTaken        nobody holds it: the deadline passed, or it was given back
          TaskTakenByOther    somebody else holds it (.holder)
        MessageIsClaimed      delete_message without a claim: the message is claimed
        MessageNotClaimed     delete_message with a claim: nobody has claimed the message
        MessageNotClaimedBy   the same: another claim holds it (.claim_id: the one that does not)
        TaskBusy              take_id: its lane is busy, or somebody is just changing it
        TaskFailed            result: it failed for good (.error)
        ResultUnknown         result: the task is gone, and no result of it is kept
      NodeError               about one node (.path)
        NodeExists            create_node: there is one of this path
        NoNode                there is none of this path, or no parent to create it under
        BadVersion            it is at another version than the one that was named
        NotEmpty              delete_node: it has children
        EphemeralParent       create_node: an ephemeral node has no children

A bad argument is a ValueError: the caller's code is wrong, and no retry will mend it. BadData is the one that names
the place in a task's data. What the database itself refuses stays a psycopg.Error.
"""

from __future__ import annotations

import psycopg


class Error(Exception):
    """The base of every error that pgqueue raises on purpose."""


class ServerError(Error):
    """No server can be reached or, embedded, started; the message says what to do."""


class ConnectionLost(Error):
    """The connection broke during a call, so it is unknown whether that took effect.

    A put may be repeated at the price of a duplicate. An ack may be repeated: if it did take effect, the second
    one says TaskNotFound.
    """


class SchemaError(Error):
    """The schema in the database does not fit this library; the message names what mends it."""


class ClosedError(Error):
    """The client is closed."""


class NotRunning(Error):
    """Queues do not work here: the server is a standby, or somebody made it, or this transaction, read-only."""


class QueueExists(Error):
    """A queue of this name is there already."""


class NoQueue(Error):
    """There is no queue of this name."""


class QueueExclusive(Error):
    """The queue is another client's, and only that one may take from it."""


class QueueInUse(Error):
    """The queue was not deleted: it holds tasks, or somebody holds a task of it or waits for one."""


class DeadlineSoon(Error):
    """A take that this client holds ends within a second: finish it, or touch it. As beanstalkd's DEADLINE_SOON."""


class NotIgnored(Error):
    """A watch list has at least one queue: the last is not ignored. As beanstalkd's NOT_IGNORED."""


class PutRefused(Error):
    """The queue does not take this put; nothing was changed."""


class QueueFull(PutRefused):
    """The queue is at its capacity: put again later, or with a timeout to wait for room."""


class QueueDraining(PutRefused):
    """The queue is draining: nothing is put into it any more. As beanstalkd's DRAINING."""


class DataTooBig(PutRefused):
    """The data is larger than the queue's max_size. As beanstalkd's JOB_TOO_BIG."""


class KeyExists(PutRefused):
    """The queue has a task with this key that is not done, and the put was to be an error then."""


class KeyTaken(PutRefused):
    """The task with this key is taken, so the put cannot replace it."""


class QueueNotListed(Error):
    """The queue's option `listed` is off, so its messages cannot be listed."""


class ClaimDoesNotExist(Error):
    """There is no such claim of messages: it is over, it was deleted, or it never existed.

    Attributes:
        claim_id: the id that was given.
    """

    def __init__(self, message: str, claim_id: int | str) -> None:
        super().__init__(message)
        self.claim_id = claim_id


class ExchangeExists(Error):
    """An exchange of this name is there already, of another type, or it lives as long as another client."""


class NoExchange(Error):
    """There is no exchange of this name."""


class Unroutable(Error):
    """No queue is bound so that it would get what was published; nothing was put."""


class NoIdentity(Error):
    """Nobody has this identity: it never was, or who had it was gone for too long, and their tasks were given back."""


class LockTimeout(Error, TimeoutError):
    """A lock was not granted in time; the view pgqueue.locks says who holds it."""


class LockLost(Error):
    """A lock that was held is held no more, so somebody else may hold it: stop what it protected."""


class BadData(ValueError):
    """A task's data cannot be stored as JSON.

    Attributes:
        path: where in the data, as in `$.lines[3].price`; `[index]` before the `$` with put_many.
    """

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason


class SessionDead(Error):
    """Internal: a claim was refused because its session is not alive. Takes open a new one and try again."""


class TaskError(Error):
    """Something about one task; `task_id` says which."""

    def __init__(self, message: str, task_id: int | None = None) -> None:
        super().__init__(message)
        self.task_id = task_id


class TaskIdRequired(TaskError, ValueError):
    """A task is named by its id: an int, or a string of decimal digits."""


class TakeLost(TaskError):
    """The take that was presented does not count any more; nothing was changed."""


class TaskNotFound(TakeLost):
    """There is no such task: acked, deleted, or never put."""


class TaskNotTaken(TakeLost):
    """The task is not taken by anybody."""


class TaskTakenByOther(TakeLost):
    """The task is taken by somebody else.

    Attributes:
        holder: who, as in the view pgqueue.sessions: host, process id and program.
    """

    def __init__(self, message: str, task_id: int, holder: str) -> None:
        super().__init__(message, task_id)
        self.holder = holder


class MessageIsClaimed(TaskError):
    """The message is claimed, or taken, and is only deleted by who can name its claim."""


class MessageNotClaimed(TaskError):
    """A claim was named to delete the message, and nobody has claimed it."""


class MessageNotClaimedBy(TaskError):
    """A claim was named to delete the message, and another one holds it.

    Attributes:
        claim_id: the id that was given.
    """

    def __init__(self, message: str, task_id: int, claim_id: int) -> None:
        super().__init__(message, task_id)
        self.claim_id = claim_id


class TaskBusy(TaskError):
    """The task cannot be taken at this moment: its lane is busy, or somebody is just changing it."""


class TaskFailed(TaskError):
    """The task whose result was asked for has failed for good.

    Attributes:
        error: what its last attempt said.
    """

    def __init__(self, task_id: int, error: str) -> None:
        super().__init__(f"task {task_id} failed: {error}", task_id)
        self.error = error


class ResultUnknown(TaskError):
    """The task whose result was asked for is gone, and no result is kept: it expired, was never kept, or never was."""


def refusal(task_id: int, state: str | None, problem: str, holder: str | None, me: str) -> TakeLost:
    """The error for a row that a settling function answered with a problem."""
    if problem == "not found":
        return TaskNotFound(f"task {task_id} was not found: it was acked, deleted or never put", task_id)
    if problem == "not taken":
        return TaskNotTaken(f"task {task_id} is not taken by anybody: it is {state}", task_id)
    return TaskTakenByOther(f"task {task_id} is taken by {holder}, not by this take of {me}", task_id, holder or "?")


class NodeError(Error):
    """Something about one node; nothing was changed.

    Attributes:
        path: the node's.
    """

    def __init__(self, message: str, path: str) -> None:
        super().__init__(message)
        self.path = path


class NodeExists(NodeError):
    """There is a node of this path already."""


class NoNode(NodeError):
    """There is no node of this path, or, when one is created, none above it."""


class BadVersion(NodeError):
    """The node is at another version than the one that was named: somebody has changed it since."""


class NotEmpty(NodeError):
    """The node has children, so it cannot be deleted."""


class EphemeralParent(NodeError):
    """The node above is ephemeral, and such a node has no children."""


_MISUSE = {
    "PQ001": ValueError,
    "PQ002": ValueError,
    "PQ003": QueueExists,
    "PQ004": SessionDead,
    "PQ030": ExchangeExists,
    "PQ031": NoExchange,
    "PQ032": NoQueue,
    "PQ033": QueueExclusive,
    "PQ034": QueueInUse,
    "PQ035": QueueDraining,
    "PQ036": DataTooBig,
    "PQ037": QueueFull,
    "PQ038": KeyExists,
    "PQ039": KeyTaken,
    "PQ060": QueueNotListed,
    "PQ070": NoIdentity,
    **dict.fromkeys(("PQ040", "PQ041", "PQ042", "PQ043"), ValueError),
}
_READ_ONLY = "25006"  # read_only_sql_transaction
_UNSUPPORTED = "0A000"  # of a standby, where our UNLOGGED tables are not, and of much else
_NO_SCHEMA = {"3F000", "42883", "42P01"}  # invalid_schema_name, undefined_function, undefined_table


def translate(error: psycopg.Error, *, lost: bool) -> Exception:
    """What a caller should see of an error of psycopg; `lost` tells that its connection is broken."""
    message = error.diag.message_primary or str(error)
    return known(error.sqlstate, message, error.diag.source_function, lost=lost) or error


def known(sqlstate: str | None, message: str, source_function: str | None, *, lost: bool) -> Exception | None:
    """The same of any driver's error, from what the server said: one of ours, or None.

    Args:
        sqlstate: of the server; None if the error is not its.
        message: its primary message.
        source_function: the function of the server's source in which the error arose.
        lost: the connection is broken.
    """
    state = sqlstate or ""
    if state in _MISUSE:
        return _MISUSE[state](message)
    if state in _NO_SCHEMA and "pgqueue" in message:
        return SchemaError(f"this database lacks a part of the pgqueue schema ({message}): run `pgqueue migrate up`")
    if state == _READ_ONLY or (state == _UNSUPPORTED and source_function == "get_relation_info"):
        return NotRunning(f"queues do not work here ({message}): it is a standby, or read-only")
    if lost:
        return ConnectionLost(f"the connection to PostgreSQL broke during the call: {message}")
    return None
