"""Messages of Dramatiq as data of tasks. No I/O.

A task's data is {"job": "send", "id": "5e0c...", "text": "..."}: the name of the actor, the id of the message, and the
output of Dramatiq's encoder, which is bytes where it is no text. So the views, the command line and the
dashboard show messages by name, as they show jobs. A message in jsonb would not be the same: jsonb orders keys, makes
an integer of 1e16, and has no NaN.

Data without an encoded message is read as a call: {"job": "send", "args": ["ada"]}. So SQL and other languages can send
a message in one line.
"""

from __future__ import annotations

from typing import Any

from dramatiq import Message
from dramatiq.common import q_name
from dramatiq.errors import DecodeError

from ..._values.marked import bytes_of, text_of


def data_of(message: Message[Any]) -> dict[str, Any]:
    """The data of the task that carries a message."""
    return {"job": message.actor_name, "id": message.message_id, "text": text_of(message.encode())}


def message_of(data: Any, id: int, queue: str) -> Message[Any]:
    """The message that a task carries; `id` and `queue` are the task's.

    The queue is the one that the task was taken from, also if it was moved there: Dramatiq's worker finds the consumer
    of a message by it.

    Raises:
        DecodeError: the data is neither a message that Dramatiq's encoder reads, nor a call.
    """
    if not isinstance(data, dict) or not isinstance(data.get("job"), str):
        raise DecodeError("The data of a task has no message, and no name of an actor as 'job'.", data, None)
    if isinstance(text := data.get("text"), str | bytes):
        return canonical(Message.decode(bytes_of(text)), queue)
    return canonical(_call(data, id), queue)


def canonical(message: Any, queue: str) -> Message[Any]:
    """The message, for a queue without a suffix of Dramatiq's, and with the delay of the task in place of an eta."""
    moved: Message[Any] = message.copy(queue_name=q_name(queue))
    moved.options.pop("eta", None)
    return moved


def _call(data: dict[str, Any], id: int) -> Message[Any]:
    args: Any
    args, kwargs, options = (data.get(name) or {} for name in ("args", "kwargs", "options"))
    if isinstance(args, dict):
        args, kwargs = [], {**args, **kwargs}
    if not (isinstance(args, list) and isinstance(kwargs, dict) and isinstance(options, dict)):
        raise DecodeError("The args of a call are a list or an object, its kwargs and options objects.", data, None)
    return Message("", data["job"], tuple(args), kwargs, options, message_id=str(data.get("id") or id))
