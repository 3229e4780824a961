"""A task that another call puts: an ack puts the tasks that it hands on to in the same statement."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any, Unpack
from uuid import UUID

from .._calls.put_options import Deferred, PutArguments, PutOptions
from .._values import arguments, data
from ..errors import BadData


@dataclass(frozen=True, slots=True, init=False)
class Put(Deferred):
    """A task for `ack(put=[...])` or `put_graph([...])`: a queue, the data and, by keyword, the options of Queue.put.

    `after` may hold other Puts, which must be before this one in the same call.

    Attributes:
        queue: the name of the queue to put it into.
        data: anything that JSON can hold, and bytes; checked when it is sent.
        options: priority, delay, run_at, ttr, ttl, lane, key, if_exists, sender, unique_data, unique_for, after,
            on_failure and batch; see Queue.put.

    Raises:
        ValueError: the name or an option is not valid; raised when the Put is made.
    """

    queue: str
    data: Any
    options: PutOptions

    def __init__(self, queue: str, data: Any, **options: Unpack[PutArguments]) -> None:
        object.__setattr__(self, "queue", arguments.text(arguments.queue_name(queue), "a queue's name"))
        object.__setattr__(self, "data", data)
        object.__setattr__(self, "options", PutOptions.of(options))


def as_json(puts: Iterable[Put], max_size: int = data.MAX_SIZE) -> str | None:
    """The JSON array for the argument `puts` of pgqueue.ack; None if there are no puts.

    Raises:
        BadData: the data of one put; the path begins with its index, as in `[2]$.name`.
        ValueError: one of them is not a Put, or waits for one that is not before it.
    """
    places: dict[int, int] = {}  # by the identity of the Put
    texts = []
    for index, put in enumerate(puts):
        texts.append(_one_as_json(index, put, max_size, places))
        places[id(put)] = -index - 1  # as pgqueue._put_all names them
    arguments.elements("put", len(texts))
    return f"[{','.join(texts)}]" if texts else None


def _one_as_json(index: int, put: Put, max_size: int, places: dict[int, int]) -> str:
    if not isinstance(put, Put):
        raise ValueError(f"put must hold Put(queue, data) objects, not {put!r}")
    try:
        text = data.encode(put.data, max_size)
    except BadData as error:
        raise BadData(f"[{index}]{error.path}", error.reason) from None
    # The data is JSON text already. Decoding it to encode everything at once would cost as much again.
    return f'{_encode_rest(put, places)[:-1]},"data":{text}}}'


def _encode_rest(put: Put, places: dict[int, int]) -> str:
    given = {field.name: getattr(put.options, field.name) for field in fields(put.options)}
    if put.options.after is not None:
        given["after"] = [_place(one, places) for one in put.options.after]
    asked = {name: value for name, value in given.items() if value is not None and value is not False}
    return json.dumps({"queue": put.queue} | asked, default=_as_json)


def _as_json(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    return str(value) if isinstance(value, UUID) else float(value)


def _place(one: Put | int, places: dict[int, int]) -> int:
    if not isinstance(one, Put):
        return one
    if id(one) not in places:
        raise ValueError(f"a Put waits for one into {one.queue!r}, which must stand before it in the same call")
    return places[id(one)]
