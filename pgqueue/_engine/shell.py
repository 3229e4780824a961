"""What both shells share apart from how they wait: fences, encoding, and what becomes of the rows of a take.

The shell is what the classes of _async and _sync need of their client: `run` sends a call, `drive` performs a flow.
Only the client owns it, and queues, tasks and families refer to it, so none of them refers to the client.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

from .._calls.call import Call, Fence
from .._calls.settle import bury, release_many
from .._calls.take import AnyTaken
from .._records.puts import Put, as_json
from .._values import data
from .core import Core, Settings

T = TypeVar("T")
Row = TypeVar("Row", bound=AnyTaken)

log = logging.getLogger("pgqueue")

CHUNK = 1000  # tasks in a statement of put_many
UNREADABLE = (ValueError, RecursionError)  # json, for a number of 5,000 digits and for data that is nested too deep


class ShellBase:
    """`core` is the client apart from how it waits; the subclass adds `connections`, `run`, `drive` and `listener`."""

    def __init__(self, core: Core) -> None:
        self.core = core

    @property
    def settings(self) -> Settings:
        return self.core.settings

    def fence(self, token: int | None = None) -> Fence:
        """What a settling call presents: the token of a take, else the client's session."""
        return self.core.fence(token)

    def joined(self, *, waiting: bool = False) -> Any:
        """The connection of a framework, for puts that name none; None where pools are used."""
        return None

    def ended(self, state: str, conn: object) -> str:
        """A verb has ended a take, on the caller's connection if there is one. A worker's shell notes it."""
        return state

    def later(self, call: Call[Any]) -> None:
        """Have the listener run a call soon; nothing waits for it."""
        if (listener := self.core.running_listener) is not None:
            listener.later(call)

    def give_back(self, taken: Iterable[tuple[int, int | None]]) -> None:
        """Have takes that nothing will handle released soon: pairs of a task's id and its token."""
        self.later(release_many(list(taken), Fence(None, None)))

    def made(self, rows: list[Row], make: Callable[[Row], T]) -> list[T]:
        """The tasks of a claim's rows.

        SQL can put data that Python's json does not read. Such a task is buried, or it would come again and again.
        Ctrl-C may come between the claim and the return: then all of the rows are given back.

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
            self.give_back((row.id, row.token) for row in rows)
            raise

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
        return data.encode_many(list(items), self.settings.max_data_size)

    def encode_chunks(self, items: Iterable[Any]) -> Iterator[str]:
        return data.encode_chunks(items, CHUNK, self.settings.max_data_size)
