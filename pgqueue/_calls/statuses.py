"""Calls of 6_families/statuses.sql: status by key."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

from .._values import arguments, data
from .._values.arguments import Seconds
from .call import Call, call, query, scalar, written


def set_status(key: str, text: str, ttl: Seconds | None, if_absent: bool = False) -> Call[bool]:
    if text == "null":
        raise ValueError("a status cannot be None, which get() returns for a key without a status: use delete()")
    return call(
        "set_status",
        None,
        scalar,
        key=_key(key),
        value=text,
        ttl=arguments.seconds("ttl", ttl, positive=True),
        if_absent=arguments.flag("if_absent", if_absent),
    )


def get_status(key: str) -> Call[Any]:
    return query(
        f"SELECT {written('get_status', 'key')}::pg_catalog.text",
        (_key(key),),
        lambda rows: data.decode_if_any(rows[0][0]),
    )


def get_statuses(keys: Iterable[str]) -> Call[dict[str, Any]]:
    """The statuses of the keys that have one."""
    asked = list(dict.fromkeys([_key(key) for key in keys]))
    arguments.elements("keys", len(asked))
    return query(
        "SELECT key, pgqueue.get_status(key => key)::pg_catalog.text"
        " FROM pg_catalog.unnest(%s::pg_catalog.text[]) asked(key)",
        (asked,),
        lambda rows: {key: data.decode(value) for key, value in rows if value is not None},
    )


def delete_status(key: str) -> Call[bool]:
    return call("delete_status", None, scalar, key=_key(key))


def status_channel(key: str) -> str:
    """The channel on which set_status notifies."""
    return f"pgqueue:status:{hashlib.md5(_key(key).encode(), usedforsecurity=False).hexdigest()}"


def _key(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"a status key is a string, not {value!r}")
    if not 1 <= len(value) <= 200:
        raise ValueError(f"a status key has 1 to 200 characters, this one has {len(value)}: take its md5, for example")
    return arguments.text(value, "a status key")
