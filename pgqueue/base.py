"""What the two shells have in common: settings, checks, the core, and what a take needs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Self, TypeVar

from . import arguments, calls, data
from .calls import Fence, Taken
from .core import Core, Settings

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

CHUNK = 1000  # tasks a statement in put_many


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

    def handler(self, queue: str) -> Callable[[F], F]:
        """Register a function as the handler of a queue's tasks, for a Worker. It stays callable by itself.

        The function may be sync or async, and is called with a task's data; see Worker.
        """
        arguments.queue_name(queue)

        def register(function: F) -> F:
            self.handlers[queue] = function
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
        self._open()

    def _open(self) -> None:
        raise AssertionError("a shell has connections of its own kind")

    def _fence(self, token: int | None) -> Fence:
        return self._core.fence(token)

    def _made(self, rows: list[Taken], make: Callable[[Taken], T]) -> list[T]:
        """The tasks of a claim. When one cannot be made, all are given back, for nobody has them: SQL can put what
        Python's json does not read, and Ctrl-C may come in between."""
        try:
            return [make(row) for row in rows]
        except BaseException:
            if (listener := self._core.running_listener) is not None:
                listener.later(calls.release_many([(row.id, row.token) for row in rows], Fence(None, None)))
            raise

    def _encode(self, value: Any) -> str:
        return data.encode(value, self._core.settings.max_data_size)

    def _encode_many(self, items: Iterable[Any]) -> str:
        return data.encode_many(list(items), self._core.settings.max_data_size)

    def _encode_chunks(self, items: Iterable[Any]) -> Iterator[str]:
        return data.encode_chunks(items, CHUNK, self._core.settings.max_data_size)
