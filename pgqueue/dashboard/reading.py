"""The reads of pages: statements on the views, whose answers browsers share, and the arguments of a URL, checked.

Ten browsers on one page ask the same within a second. `Reader` sends the statement once and gives all of them its
answer, so the cost for the database does not grow with their number. An answer that may be older, as that of health,
is also shared for the longer the dearer it was: on a large database the checks would otherwise use most of the time
allowed for live pages. An action empties the store of answers: the next page shows its effect.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import deque
from collections.abc import Mapping
from typing import Any, TypeVar
from urllib.parse import unquote

from .. import AsyncClient
from .._calls.call import Call
from .._values import arguments, data, printable
from .._values.marked import restored
from ..errors import CallTimeout, ConnectionLost, ServerError

T = TypeVar("T")

MOST_SHARED = 1000  # answers
KEPT = 10.0  # seconds for which an answer is shared at most
TIMES = 5  # of a statement, that are compared
DEAR = 200  # an answer that may be older takes one part of this many of the time
EXACT = "_exact"  # of the argument with the percent-encoded value that a field of a form shows with escapes
PATIENCE = 10.0  # seconds for a statement of a page
BRIEFLY = 2.0  # seconds for one while the server cannot be reached: its page says so, and asks again


class Reader:
    """Sends the statements of pages, and shares their answers.

    Attributes:
        client: for everything else.
        shared: seconds for which an answer is shared.
        spent: the cost of all statements for the database, in seconds. The wait for a server that cannot be reached
            costs nothing.
        is_lost: whether the last statement found no server.
    """

    shared = 0.9  # less than a browser waits between two looks

    def __init__(self, client: AsyncClient) -> None:
        self.client = client
        self.spent = 0.0
        self.is_lost = False
        self._answers: dict[tuple[str, str], tuple[float, asyncio.Future[Any]]] = {}
        self._times: dict[str, deque[float]] = {}

    async def __call__(self, call: Call[T], times: float = 1.0) -> T:
        """The answer to a statement: its own, or one that is no older than `times` the time for which it is shared. If
        `times` is more than one, a dear answer may be older: DEAR times as old as its statement costs, up to KEPT."""
        key, now = (call.sql, repr(call.args)), time.monotonic()
        known = self._answers.get(key)
        if known is None or now - known[0] >= self._age(call, times):
            known = now, asyncio.ensure_future(self.ask(call))
            self._forget(now)
            self._answers[key] = known
        answer: T = await asyncio.shield(known[1])
        return answer

    def _age(self, call: Call[Any], times: float) -> float:
        """Seconds for which an answer is shared."""
        dear = DEAR * self._cost(call) if times > 1 and self.shared else 0.0
        return min(max(times * self.shared, dear), KEPT)

    def forget(self) -> None:
        """Share no earlier answer any more: something was changed."""
        self._answers.clear()

    async def ask(self, call: Call[T], within: float = PATIENCE) -> T:
        """An answer of its own, whose cost counts."""
        began = time.monotonic()
        lost = False
        try:
            return await self.client.shell.run(call, within=BRIEFLY if self.is_lost else within)
        except (ServerError, ConnectionLost) as error:
            lost = not isinstance(error, CallTimeout)
            raise
        finally:
            self.is_lost = lost
            if not lost:
                self._times.setdefault(call.sql, deque(maxlen=TIMES)).append(time.monotonic() - began)
                self.spent += self._cost(call)

    def _cost(self, call: Call[Any]) -> float:
        """The cost of a statement for the database, in seconds: the least of its last times. In the others it also
        waited, for a CPU, a connection or a lock."""
        return min(self._times.get(call.sql, (0.0,)))

    def _forget(self, now: float) -> None:
        if len(self._answers) >= MOST_SHARED:
            self._answers.clear()
        for key in [key for key, (at, _) in self._answers.items() if now - at > KEPT]:
            del self._answers[key]
        if len(self._times) >= MOST_SHARED:
            self._times.clear()


class Asked:
    """The arguments in the query string of a URL, read and checked. Each method raises ValueError."""

    def __init__(self, given: Mapping[str, str]) -> None:
        self._given = given

    def text(self, name: str, *, longest: int = 1000) -> str | None:
        """A text; None if it is missing or empty."""
        value = self._given.get(name, "")
        exact = unquote(self._given.get(name + EXACT, ""))
        if exact and value == printable.line(exact):  # the field of a form, left as it was
            value = exact
        if len(value) > longest:
            raise ValueError(f"{name} has at most {longest} characters, not {len(value)}")
        return arguments.text(value, name) if value else None

    def queue(self, name: str = "queue") -> str:
        """The name of a queue, which has to be there."""
        given = self.text(name)
        if given is None:
            raise ValueError(f"the address names no {name}")
        return arguments.queue_name(given)

    def id(self, name: str = "id") -> int:
        """The id of a task."""
        given = self.text(name)
        if given is None or not given.isascii() or not given.isdecimal() or not 0 < int(given[:20]) < 2**63:
            raise ValueError(f"{name} is a number from 1 on, not {given!r}")
        return int(given)

    def one_of(self, name: str, choices: tuple[str, ...], default: str) -> str:
        given = self.text(name) or default
        if given not in choices:
            raise ValueError(f"{name} is one of {', '.join(choices)}, not {given!r}")
        return given

    def seconds(self, name: str) -> float | None:
        """A number of seconds; also as 15m, 1h or 2d."""
        given = self.text(name, longest=20)
        if given is None:
            return None
        unit = {"s": 1, "m": 60, "h": 3600, "d": 86400}.get(given[-1:])
        try:
            number = float(given if unit is None else given[:-1]) * (unit or 1)
        except ValueError:
            raise ValueError(f"{name} is a time as 90, 15m, 1h or 2d, not {given!r}") from None
        return arguments.seconds(name, number)

    def json(self, name: str) -> Any:
        """The value of a JSON text; None if it is missing or empty."""
        given = self.text(name, longest=10_000)
        if given is None:
            return None
        try:
            return restored(data.decode(given))
        except (ValueError, RecursionError):
            raise ValueError(f'{name} is JSON, as {{"to": "ada"}} or "a text", not {given!r}') from None

    def count(self, name: str, default: int, most: int) -> int:
        given = self.text(name, longest=20)
        if given is None:
            return default
        if not given.isascii() or not given.isdecimal() or not 1 <= int(given) <= most:
            raise ValueError(f"{name} is a number from 1 to {most}, not {given!r}")
        return int(given)

    def marker(self, name: str = "after") -> str | None:
        """The place of a page in a list of tasks: a JSON array."""
        given = self.text(name)
        if given is not None:
            try:
                is_array = isinstance(json.loads(given), list)
            except (ValueError, RecursionError):
                is_array = False
            if not is_array:
                raise ValueError(f"{name} comes from the page before, and is not {given!r}")
        return given
