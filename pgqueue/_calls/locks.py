"""Calls of 4_families/locks.sql."""

from __future__ import annotations

from typing import NamedTuple

from .call import Call, Rows, nothing


class Answer(NamedTuple):
    """The answer of ask_lock. `channel` is the channel on which this request's token will be called."""

    fence: int | None
    ahead: int
    channel: str


def ask_lock(name: str, shared: bool, token: int, wait: bool) -> Call[Answer]:
    return Call(
        "SELECT fence, ahead, channel FROM pgqueue.ask_lock(name => %s::pg_catalog.text, shared => %s::boolean,"
        " token => %s::bigint, wait => %s::boolean)",
        (name, shared, token, wait),
        lambda rows: Answer(*rows[0]),
    )


def drop_lock(token: int) -> Call[bool]:
    def read(rows: Rows) -> bool:
        held: bool = rows[0][0]
        return held

    return Call("SELECT pgqueue.drop_lock(token => %s::bigint)", (token,), read)


def ping() -> Call[None]:
    """A round trip that checks the connection."""
    return Call("SELECT 1", (), nothing)
