"""Messages of kombu as data of tasks. No I/O.

A task's data is the message as kombu's virtual transports have it, with one field more, `job`: the name of Celery's
task. So the views, the command line and the dashboard show Celery's tasks by name, as they show jobs. A body of bytes
is stored as text if it is text.

Conversely, data without a body is read as a job: `{"job": "shop.add", "args": [2, 3]}` is a call of Celery's task
shop.add, so that SQL and other languages can put one in one line. And a message with the header `pgqueue_job` is put as
a job of pgqueue, for a worker of pgqueue.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any, TypedDict

from ..._values.marked import written

Message = dict[str, Any]

AS_JOB = "pgqueue_job"  # the header
HIGHEST = 2**31 - 1


class PutOptions(TypedDict, total=False):
    """Options of a put, and of a publish."""

    priority: int
    ttl: float
    run_at: datetime


def data_of(message: Message) -> Any:
    """The data of the task that carries a message."""
    headers = message.get("headers") or {}
    name = headers.get("task")
    if not isinstance(name, str):
        return message
    if headers.get(AS_JOB):
        args, kwargs = _arguments(message, name)
        return {"job": name, "args": args or kwargs}
    return {"job": name, **message}


def message_of(data: Any, id: int, queue: str) -> Message:
    """The message that a task carries: `id` and `queue` are the task's."""
    if isinstance(data, dict) and "body" in data and isinstance(data.get("properties"), dict):
        message = dict(data)
        message.pop("job", None)
        return message
    if isinstance(data, dict) and isinstance(data.get("job"), str):
        return _call(data, id, queue)
    # In no form that Celery knows: its worker logs that, and rejects it.
    return _message(json.dumps(data, default=written), {}, str(id), queue)


def options_of(message: Message, priority: int, hold: bool) -> PutOptions:
    """The options with which a message is put.

    Args:
        message: the message.
        priority: that of AMQP, 0 to 9, the highest first.
        hold: whether a message that is for later (`eta`, `countdown`) is delivered at once to the worker, which then
            holds it.
    """
    options: PutOptions = {}
    if priority:
        options["priority"] = -priority
    headers = message.get("headers") or {}
    expiration = message["properties"].get("expiration")
    if expiration is not None and headers.get("expires") is None:  # Celery's worker revokes its tasks, and logs that
        options["ttl"] = max(int(expiration), 1) / 1000  # of AMQP, in milliseconds
    if (eta := headers.get("eta")) is not None and not hold:
        options["run_at"] = _moment(eta)
    return options


def queue_options(arguments: dict[str, Any] | None) -> dict[str, Any]:
    """The options of a queue for the arguments of RabbitMQ. Others are ignored, as RabbitMQ ignores unknown ones."""
    given = arguments or {}
    options: dict[str, Any] = {}
    if "x-message-ttl" in given:
        options["ttl"] = max(int(given["x-message-ttl"]), 1) / 1000
    if "x-expires" in given:
        options["expires"] = max(int(given["x-expires"]), 1) / 1000
    if "x-max-length" in given:
        options["maxlen"] = min(int(given["x-max-length"]), HIGHEST)
    if "x-dead-letter-exchange" in given:
        options["dead_letter"] = given["x-dead-letter-exchange"]
    if "x-dead-letter-routing-key" in given:
        options["dead_letter_key"] = given["x-dead-letter-routing-key"]
    return options


def _arguments(message: Message, name: str) -> tuple[list[Any], dict[str, Any]]:
    try:
        args, kwargs, _ = json.loads(message["body"])
    except (ValueError, TypeError) as error:
        raise ValueError(f"{name} with the header {AS_JOB} needs the serializer json: {error}") from None
    if args and kwargs:
        raise ValueError(f"{name} with the header {AS_JOB} needs arguments that all have names, or none")
    return args, kwargs


def _call(data: dict[str, Any], id: int, queue: str) -> Message:
    """A job as a call of Celery's task of the same name, by version 2 of its protocol."""
    given = data.get("args") or []
    args, kwargs = ([], given) if isinstance(given, dict) else (given, {})
    kwargs = {**kwargs, **(data.get("kwargs") or {})}
    name = str(data.get("id") or id)
    headers = {"lang": "py", "task": data["job"], "id": name, "root_id": name, "parent_id": None, "group": None}
    headers |= {"retries": 0, "eta": None, "expires": None, "timelimit": [None, None], "origin": "pgqueue"}
    headers |= {"argsrepr": repr(args), "kwargsrepr": repr(kwargs), "ignore_result": False}
    chain: dict[str, Any] = {"callbacks": None, "errbacks": None, "chain": None, "chord": None}
    return _message(json.dumps([args, kwargs, chain]), headers, name, queue)


def _message(body: str, headers: dict[str, Any], id: str, queue: str) -> Message:
    properties = {"correlation_id": id, "reply_to": "", "delivery_mode": 2, "priority": 0, "body_encoding": None}
    properties["delivery_info"] = {"exchange": "", "routing_key": queue}
    return {
        "body": body,
        "content-type": "application/json",
        "content-encoding": "utf-8",
        "headers": headers,
        "properties": properties,
    }


def _moment(eta: Any) -> datetime:
    """The time of Celery's header: UTC where it names no zone."""
    moment = eta if isinstance(eta, datetime) else datetime.fromisoformat(eta)
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
