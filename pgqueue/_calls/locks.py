"""Calls of 6_families/locks.sql."""

from __future__ import annotations

from typing import NamedTuple

from .call import Call, call, nothing, query, scalar


class Answer(NamedTuple):
    """The answer of ask_lock. `channel` is the channel on which this request's token will be called."""

    fence: int | None
    ahead: int
    channel: str


def ask_lock(name: str, shared: bool, token: int, wait: bool) -> Call[Answer]:
    return call(
        "ask_lock",
        "fence, ahead, channel",
        lambda rows: Answer(*rows[0]),
        name=name,
        shared=shared,
        token=token,
        wait=wait,
    )


def drop_lock(token: int) -> Call[bool]:
    return call("drop_lock", None, scalar, token=token)


def ping() -> Call[None]:
    """A round trip that checks the connection."""
    return query("SELECT 1", (), nothing)
