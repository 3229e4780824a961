"""What the two shells have in common: settings, checks, the core, and what a take needs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Self, TypeVar

from . import arguments, calls, data
from .calls import Call, Fence, Taken
from .core import Core, Settings
from .puts import Put, as_json

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")
C = TypeVar("C", bound=type)

log = logging.getLogger("pgqueue")

CHUNK = 1000  # tasks a statement in put_many
UNREADABLE = (ValueError, RecursionError)  # json, of a number of 5,000 digits and of what is nested too deep


def mirrors(original: type) -> Callable[[C], C]:
    """Give a class and its methods the docstrings of the one that it mirrors."""

    def copy(mirror: C) -> C:
        mirror.__doc__ = original.__doc__
        for name, method in vars(mirror).items():
            if not name.startswith("_") and method.__doc__ is None:
                method.__doc__ = vars(original)[name].__doc__
        return mirror

    return copy


class ClientBase:
    def __init__(
        self,
        dsn: str | None = None,
        *,
        listen_dsn: str | None = None,
        pool_size: int = 10,
        connect_timeout: float = 10.0,
        session_grace: float = 0.5,
        poll: float | None = 30.0,
        idle_timeout: float = 15.0,
        max_data_size: int = data.MAX_SIZE,
    ) -> None:
        settings = Settings(
            dsn=dsn,
            listen_dsn=listen_dsn,
            pool_size=pool_size,
            connect_timeout=connect_timeout,
            session_grace=session_grace,
            poll=poll,
            idle_timeout=idle_timeout,
            max_data_size=max_data_size,
        )
        self._begin(Core(settings))

    def handler(self, queue: str, *, keep_result: float | None = None) -> Callable[[F], F]:
        """Register a function as the handler of a queue's tasks, for a Worker. It stays callable by itself.

        The function may be sync or async, and is called with a task's data; see Worker.

        Args:
            queue: the queue's name.
            keep_result: for how many seconds to keep what the handler returns, for Client.result(); and, of a task that
                failed for good, that it failed. A result that JSON cannot hold is a failure. None keeps nothing.

        Raises:
            ValueError: the name or the time cannot be.
        """
        arguments.queue_name(queue)
        keep = arguments.seconds("keep_result", keep_result, positive=True)

        def register(function: F) -> F:
            self.handlers[queue] = function
            self.keep_results.pop(queue, None)
            if keep is not None:
                self.keep_results[queue] = keep
            return function

        return register

    @classmethod
    def _over(cls, core: Core) -> Self:
        self = cls.__new__(cls)
        self._begin(core)
        return self

    def _begin(self, core: Core) -> None:
        self._core = core
        self.handlers: dict[str, Callable[..., Any]] = {}
        self.keep_results: dict[str, float] = {}  # for the queues among them whose results are kept, seconds
        self._open()

    def _open(self) -> None:
        raise AssertionError("a shell has connections of its own kind")

    def _fence(self, token: int | None) -> Fence:
        return self._core.fence(token)

    def _made(self, rows: list[Taken], make: Callable[[Taken], T]) -> list[T]:
        """The tasks of a claim. SQL can put what Python's json does not read: such a task is buried, or it would come
        again and again. And Ctrl-C may come in between: then all are given back, for nobody has them.

        Raises:
            ValueError: none of them can be read.
        """
        try:
            try:
                return [make(row) for row in rows]
            except UNREADABLE:
                return self._made_of_the_readable(rows, make)
        except UNREADABLE:
            raise
        except BaseException:
            self._later(calls.release_many([(row.id, row.token) for row in rows], Fence(None, None)))
            raise

    def _made_of_the_readable(self, rows: list[Taken], make: Callable[[Taken], T]) -> list[T]:
        made, unreadable = [], None
        for row in rows:
            try:
                made.append(make(row))
            except UNREADABLE as error:
                unreadable = ValueError(f"task {row.id} of {row.queue} is buried, its data cannot be read: {error}")
                log.error("%s", unreadable)
                self._later(calls.bury(row.id, Fence(row.token, None), str(error)))
        if unreadable and not made:
            raise unreadable
        return made

    def _later(self, call: Call[Any]) -> None:
        if (listener := self._core.running_listener) is not None:
            listener.later(call)

    def _encode(self, value: Any) -> str:
        return data.encode(value, self._core.settings.max_data_size)

    def _encode_puts(self, puts: Sequence[Put]) -> str | None:
        return as_json(puts, self._core.settings.max_data_size)

    def _encode_many(self, items: Iterable[Any]) -> str:
        return data.encode_many(list(items), self._core.settings.max_data_size)

    def _encode_chunks(self, items: Iterable[Any]) -> Iterator[str]:
        return data.encode_chunks(items, CHUNK, self._core.settings.max_data_size)
