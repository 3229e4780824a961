"""After a fork, the child drops what the parent opened, and opens its own at first use.

Dropping is not closing: closing would end the parent's connection. But a copy that stays open keeps the server's side
alive when the parent dies, the lock of its session included, for as long as the child lives. So the copied socket is
replaced by /dev/null, and the objects around it are kept where no finaliser reaches them.
"""

from __future__ import annotations

import os
import weakref
from typing import Any, Protocol

import psycopg


class Forkable(Protocol):
    def after_fork(self) -> None:
        """In the child: forget everything that is shared with the parent. Must not block."""


_forkables: weakref.WeakSet[Forkable] = weakref.WeakSet()
_parents: list[object] = []


def register(thing: Forkable) -> None:
    """Have `thing.after_fork()` called in every forked child."""
    _forkables.add(thing)


def bury(thing: object) -> None:
    """Keep an object of the parent's for good, so that nothing finalises it here."""
    _parents.append(thing)


def detach(conn: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> None:
    """Put /dev/null in the place of a connection's socket."""
    _parents.append(conn)
    try:
        fd = conn.fileno()
    except psycopg.Error:
        return  # not connected
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, fd)
    os.close(null)


def _after_fork() -> None:
    for thing in list(_forkables):
        thing.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
