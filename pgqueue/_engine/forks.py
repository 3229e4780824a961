"""After a fork, the child drops the parent's connections and opens its own at first use.

Dropping is not closing: closing would end the parent's connection. But a copied socket that stays open would keep the
parent's server connection, and the lock of its session, alive after the parent's death, for as long as the child lives.
So the child replaces the copied socket by /dev/null, and keeps the objects around it where no finaliser reaches them.
"""

from __future__ import annotations

import os
import weakref
from typing import Any, Protocol

import psycopg


class Forkable(Protocol):
    def after_fork(self) -> None:
        """In the child: forget everything that the parent shares. Must not block."""


_forkables: weakref.WeakSet[Forkable] = weakref.WeakSet()
_parents: list[object] = []


def register(thing: Forkable) -> None:
    """Have `thing.after_fork()` called in every forked child."""
    _forkables.add(thing)


def bury(thing: object) -> None:
    """Keep one of the parent's objects for good, so that its finaliser never runs in the child."""
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
