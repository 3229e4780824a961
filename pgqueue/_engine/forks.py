"""After a fork, the child drops the parent's connections and opens its own at first use.

Dropping is not closing: closing would end the parent's connection. But a copied socket that stays open would keep the
parent's server connection, and the lock of its session, alive after the parent's death, for as long as the child lives.
So the child replaces the copied socket by /dev/null, and keeps the objects around it where no finaliser reaches them.

A connection has a socket before psycopg makes its object. While it is being opened, its generator yields the socket at
each wait. Within a step of the generator libpq opens a socket, or replaces it by that of the next host, and lets other
threads run; so a fork waits for the end of such a step. No step waits for the server.
"""

from __future__ import annotations

import os
import threading
import weakref
from typing import Any, Protocol, TypeVar

import psycopg
from psycopg.abc import PQGenConn

C = TypeVar("C")


class Forkable(Protocol):
    def after_fork(self) -> None:
        """In the child: forget everything that is shared with the parent. Must not block."""


_forkables: weakref.WeakSet[Forkable] = weakref.WeakSet()
_parents: list[object] = []
_connections: weakref.WeakSet[Any] = weakref.WeakSet()  # all of this process, also those that threads are using
_opening: dict[object, int] = {}  # the sockets of those that are being opened
_step = threading.RLock()  # while one of these sockets may change; a signal's handler may connect or fork in there


def register(thing: Forkable) -> None:
    """Have `thing.after_fork()` called in every forked child."""
    _forkables.add(thing)


def opened(conn: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> None:
    """Have a connection detached in every forked child, whichever thread uses it at the fork."""
    _connections.add(conn)


def opening(gen: PQGenConn[C]) -> PQGenConn[C]:
    """The generator of a connection that is being opened, whose socket is detached in every forked child."""
    this = object()
    try:
        with _step:
            wanted = next(gen)
            _opening[this] = wanted[0]
        while True:
            ready = yield wanted
            with _step:
                wanted = gen.send(ready)
                _opening[this] = wanted[0]
    except StopIteration as done:
        conn: C = done.value
        return conn
    finally:
        gen.close()
        _opening.pop(this, None)


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
    _silence(fd)


def _silence(fd: int) -> None:
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, fd)
    os.close(null)


def _after_fork() -> None:
    global _step
    _step = threading.RLock()
    for fd in _opening.values():
        _silence(fd)
    _opening.clear()
    for conn in list(_connections):
        detach(conn)
    for thing in list(_forkables):
        thing.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=lambda: _step.acquire(), after_in_parent=lambda: _step.release(), after_in_child=_after_fork
    )
