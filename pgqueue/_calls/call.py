"""A call: the statement of one round trip, and how to read its rows. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, LiteralString, NamedTuple, TypeVar

from .._values import arguments
from ..errors import refusal

T = TypeVar("T")

MAX_TEXT = 65_536  # bytes of an error message; as in sql/2_base/bounds.sql
_CUT = " [cut]"


Rows = list[tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """One round trip. `long`: it may change all tasks of a queue, so it has 40 times the client's call_timeout."""

    sql: LiteralString
    args: Sequence[Any]
    read: Callable[[Rows], T]
    long: bool = False


@dataclass(frozen=True, slots=True)
class Fence:
    """The proof that a settling call presents: the take's token, or the session for a task named by its id alone."""

    token: int | None
    session: int | None
    me: str = "this client"


class Refused(NamedTuple):
    """A task that a call for many tasks could not settle, and the reason."""

    id: int
    state: str | None
    problem: str
    holder: str | None


Named = Sequence[tuple[int, int | None]]  # ids, each with its token, or None if that is unknown


def insist(refused: list[Refused], fence: Fence) -> None:
    """Raise the TakeLost of the first refused task, if there is one."""
    for task in refused:
        raise refusal(*task, fence.me)


def hasty(argument: LiteralString) -> LiteralString:
    """An argument of a function that then waits for no lock for longer than 100 ms, and raises LockNotAvailable.

    Arguments are evaluated before the function is called, and the setting ends with the statement's transaction. So it
    needs no round trip, and no connection of its own.
    """
    return f"CASE WHEN pg_catalog.set_config('lock_timeout', '100ms', true) IS NOT NULL THEN {argument} END"


def error_text(value: str | None) -> str | None:
    """An error message as PostgreSQL can store it: no NUL, no lone surrogates, and cut to MAX_TEXT bytes."""
    whole = value and str(value).replace("\0", "\\0").encode(errors="backslashreplace")
    if not whole or len(whole) <= MAX_TEXT:
        return whole.decode() if whole else value
    return whole[: MAX_TEXT - len(_CUT)].decode(errors="ignore") + _CUT


def scalar(rows: Rows) -> Any:
    return rows[0][0]


def nothing(rows: Rows) -> None:
    return None


def columns(tasks: Named) -> tuple[str, str]:
    """The ids and the tokens, each as the text of an SQL array: psycopg takes ten times as long for a list of ints."""
    arguments.elements("tasks", len(tasks))
    write = int.__repr__  # str() of a member of an Enum is its name
    ids = [write(id) for id, _ in tasks]
    tokens = ["NULL" if token is None else write(token) for _, token in tasks]
    return f"{{{','.join(ids)}}}", f"{{{','.join(tokens)}}}"


def refusals(rows: Rows) -> list[Refused]:
    return [Refused(*row) for row in rows]


def settled(id: int, fence: Fence) -> Callable[[Rows], str]:
    def read(rows: Rows) -> str:
        state, problem, holder = rows[0]
        if problem:
            raise refusal(id, state, problem, holder, fence.me)
        return str(state)

    return read
