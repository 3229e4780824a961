"""Calls of 6_families/channels.sql: wait and post."""

from __future__ import annotations

import re

from .._values import arguments
from .call import Call, call, nothing, query, scalar

MARK = "\x01pgqueue:"  # before the id of a payload that is too large for NOTIFY; as in sql/6_families/channels.sql
OWN = "pgqueue:"  # the channels of pgqueue itself begin with it, and no payload of theirs is stored
_STORED = re.compile(MARK + "([1-9][0-9]{0,18})")

LARGEST = 7999  # bytes that NOTIFY carries


def post(channel: str, payload: str) -> Call[None]:
    """Post. A payload that pgqueue.post would not change is passed to pg_notify at once, which saves a tenth of the
    time."""
    channel, payload = arguments.channel_name(channel), arguments.payload(payload)
    if len(payload.encode()) <= LARGEST and not payload.startswith(MARK):
        return query(
            "SELECT pg_catalog.pg_notify(%s::pg_catalog.text, %s::pg_catalog.text)", (channel, payload), nothing
        )
    return call("post", None, nothing, channel=channel, payload=payload)


def stored(channel: str, payload: str) -> int | None:
    """The id of the stored payload that this mark names, or None if it is the payload itself.

    A text with the mark but without an id that a bigint can hold is a payload like any other: a NOTIFY of some role.
    """
    found = None if channel.startswith(OWN) else _STORED.fullmatch(payload)
    return int(found[1]) if found and int(found[1]) < 2**63 else None


def fetch(id: int) -> Call[str | None]:
    return call("stored_payload", None, scalar, id=id)
