"""The part of a shell that both shells share: fences, encoding, and the tasks made from a take's rows.

A shell is the part of a client that the classes of _async and _sync need: `run` sends a call, `drive` performs a flow.
The client owns its shell. Queues, tasks and families refer to the shell and not to the client.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

from .._calls.call import Call, Fence
from .._calls.settle import bury, release_many
from .._calls.take import AnyTaken
from .._records.puts import Put, as_json
from .._values import arguments, data
from .._values.logs import log
from .cancels import Watched
from .core import Core, Settings
from .duties import Duties
from .listener import Listener

T = TypeVar("T")
Row = TypeVar("Row", bound=AnyTaken)


CHUNK = 1000  # tasks in a statement of put_many
UNREADABLE = (ValueError, RecursionError)  # of json: for a number of 5,000 digits, for data nested too deep


class ShellBase:
    """`core` is the part of the client without I/O; a subclass adds `connections`, `run`, `drive` and `listener`."""

    def __init__(self, core: Core) -> None:
        self.core = core

    @property
    def settings(self) -> Settings:
        return self.core.settings

    @property
    def duties(self) -> Duties:
        return self.core.duties

    @property
    def running_listener(self) -> Listener | None:
        """The listener if it runs already."""
        return self.core.running_listener

    def fence(self, token: int | None = None) -> Fence:
        """The proof that a settling call presents: the token of a take, else the client's session."""
        return self.core.fence(token)

    def joined(self, *, waiting: bool = False) -> Any:
        """The framework's connection for puts without `conn`; None: use the client's pool."""
        return None

    def ended(self, state: str, conn: object) -> str:
        """A hook: a verb has ended a take, on the caller's connection if conn is given. A worker's shell records it."""
        return state

    def watch(self, id: int, token: int) -> Watched:
        """Watch a take of this client for its cancellation."""
        listener = self.core.running_listener
        return Watched(id, token) if listener is None else listener.cancels.watch(id, token)

    def later(self, call: Call[Any]) -> None:
        """Have the listener run a call soon. Does not wait for it."""
        if (listener := self.core.running_listener) is not None:
            listener.later(call)

    def give_back(self, taken: Iterable[tuple[int, int | None]]) -> None:
        """Have takes released soon that no caller will handle. `taken`: pairs of a task's id and its token."""
        if whole := list(taken):
            self.later(release_many(whole, Fence(None, None)))

    def left(self, takes: Iterable[tuple[int, int | None]]) -> None:
        """A hook: a verb could not end takes, and its caller has its error. They are given back."""
        self.give_back([(id, token) for id, token in takes if token is not None])

    def made(self, rows: list[Row], make: Callable[[Row], T]) -> list[T]:
        """The tasks of a claim's rows.

        SQL can put data that Python's json does not read. Such a task is buried; else it would be delivered repeatedly.

        Raises:
            ValueError: none of the rows can be read.
        """
        try:
            return [make(row) for row in rows]
        except UNREADABLE:
            return self._made_of_the_readable(rows, make)

    def _made_of_the_readable(self, rows: list[Row], make: Callable[[Row], T]) -> list[T]:
        made, unreadable = [], None
        for row in rows:
            try:
                made.append(make(row))
            except UNREADABLE as error:
                unreadable = ValueError(f"task {row.id} of {row.queue} is buried, its data cannot be read: {error}")
                log.error("%s", unreadable)
                self.later(bury(row.id, Fence(row.token, None), str(error)))
        if unreadable and not made:
            raise unreadable
        return made

    def encode(self, value: Any) -> str:
        return data.encode(value, self.settings.max_data_size)

    def encode_puts(self, puts: Sequence[Put]) -> str | None:
        return as_json(puts, self.settings.max_data_size)

    def encode_many(self, items: Iterable[Any]) -> str:
        whole = list(items)
        arguments.elements("items", len(whole))
        return data.encode_many(whole, self.settings.max_data_size)

    def encode_chunks(self, items: Iterable[Any]) -> Iterator[str]:
        return data.encode_chunks(items, CHUNK, self.settings.max_data_size)
