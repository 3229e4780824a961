"""A queue of the current application. Its puts are part of the transaction of the request's session."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Protocol, TypeVar, cast

from ... import Client, Queue
from ..._sync.messages import Messages
from ..._sync.shell import Shell
from ..._values import arguments

F = TypeVar("F", bound=Callable[..., Any])


def _joining(put: F) -> F:
    """The same method, on the session's connection unless `conn` is given."""

    @functools.wraps(put)
    def joined(self: FlaskQueue, *args: Any, conn: Any = None, **kwargs: Any) -> Any:
        return put(self, *args, conn=self._extension.session() if conn is None else conn, **kwargs)

    return cast(F, joined)


class Extension(Protocol):
    """The part of a PgQueue that a FlaskQueue uses."""

    @property
    def client(self) -> Client: ...
    def session(self) -> Any: ...


class FlaskQueue(Queue):
    """A Queue from PgQueue.queue(). If there is a db, put, put_many, put_unique and urgent are part of db.session's
    transaction; the other methods are those of Queue.
    """

    put = _joining(Queue.put)
    put_many = _joining(Queue.put_many)
    put_unique = _joining(Queue.put_unique)
    urgent = _joining(Queue.urgent)

    def __init__(self, extension: Extension, name: str) -> None:
        self.name = arguments.queue_name(name)
        self._extension = extension

    @property
    def _shell(self) -> Shell:  # type: ignore[override]  # one for each application
        return self._extension.client.shell

    @property
    def messages(self) -> Messages:  # type: ignore[override]  # likewise
        return Messages(self._shell, self)
