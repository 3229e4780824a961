"""A call: the statement of one round trip, and how to read its rows. No I/O.

A call of one function is made from its parts: the function, its columns, and its arguments by name. The text of the
statement is written once for each set of arguments, with the casts of casts.py. Any other statement is a literal.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import zip_longest
from typing import Any, Generic, LiteralString, NamedTuple, TypeVar

from .._values import arguments
from ..errors import refusal
from .casts import INT, cast

T = TypeVar("T")
U = TypeVar("U")

MAX_TEXT = 65_536  # bytes of an error message; as in sql/2_base/bounds.sql
_CUT = " [cut]"


Rows = list[tuple[Any, ...]]


class Call(NamedTuple, Generic[T]):
    """One round trip. call() makes it of a function, query() of any other statement.

    Attributes:
        sql, args: the statement, and the values of its placeholders.
        read: what the answer is, of the rows.
        long: it may change all tasks of a queue, so it has 40 times the client's call_timeout.
        function: the SQL function; None for another statement.
        columns: what of the function's rows is read; None: its value.
        given: the function's arguments by name.
    """

    sql: LiteralString
    args: Sequence[Any]
    read: Callable[[Rows], T]
    long: bool = False
    function: LiteralString | None = None
    columns: LiteralString | None = None
    given: Mapping[str, Any] = {}

    def reading(self, read: Callable[[Rows], U]) -> Call[U]:
        """The same statement, of whose rows another answer is made."""
        return Call(self.sql, self.args, read, self.long, self.function, self.columns, self.given)

    def but(self, **given: Any) -> Call[T]:
        """The same call of a function, with other values for some of its arguments."""
        assert self.function is not None
        return call(self.function, self.columns, self.read, long=self.long, **{**self.given, **given})


class As(NamedTuple):
    """The values of an argument that is not its usual cast of one value, but another expression with placeholders."""

    expression: LiteralString
    values: tuple[Any, ...]


def call(
    function: LiteralString,
    columns: LiteralString | None,
    read: Callable[[Rows], T],
    /,
    *,
    long: bool = False,
    **given: Any,
) -> Call[T]:
    """The call of a function with these arguments; columns: None for a function that returns one value."""
    args, names = tuple(given.values()), tuple(given)
    expressions: tuple[LiteralString | None, ...] = ()
    if As in map(type, args):
        expressions = tuple([value.expression if isinstance(value, As) else None for value in args])
        args = tuple([one for value in args for one in (value.values if isinstance(value, As) else (value,))])
    return Call(_statement(function, columns, names, expressions), args, read, long, function, columns, given)


def query(sql: LiteralString, args: Sequence[Any], read: Callable[[Rows], T], long: bool = False) -> Call[T]:
    """A statement that is not the call of one function: of a view, or of several functions."""
    return Call(sql, args, read, long)


def written(function: LiteralString, *names: LiteralString, **expressions: LiteralString) -> LiteralString:
    """The call of a function as a part of a statement for query(); `expressions`: what is not its usual cast."""
    usual = [(name, cast(function, name)) for name in names]
    listed: LiteralString = ", ".join([f"{name} => {one}" for name, one in (*usual, *expressions.items())])
    return f"pgqueue.{function}({listed})"


@cache  # there are as many as the library has calls
def _statement(
    function: LiteralString,
    columns: LiteralString | None,
    names: tuple[LiteralString, ...],
    expressions: tuple[LiteralString | None, ...],
) -> LiteralString:
    pairs = zip_longest(names, expressions)
    called = written(function, **{name: one or cast(function, name) for name, one in pairs})
    return f"SELECT {called}" if columns is None else f"SELECT {columns} FROM {called}"


@dataclass(frozen=True, slots=True)
class Fence:
    """The proof that a settling call presents: the take's token, or the session for a task named by its id alone."""

    token: int | None
    session: int | None
    me: str = "this client"

    def of(self, id: int) -> dict[str, Any]:
        """The arguments that name a task and prove that it is held."""
        return {"id": id, "token": self.token, "session": self.session}


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
    """An expression for an argument of a function, which then waits 100 ms for a lock, and raises LockNotAvailable.

    Arguments are evaluated before the function is called, and the setting ends with the statement's transaction. So it
    needs no round trip, and no connection of its own.
    """
    return f"CASE WHEN pg_catalog.set_config('lock_timeout', '100ms', true) IS NOT NULL THEN {argument} END"


def in_haste(session: int | None) -> As:
    """The argument `session` of a call that waits for no lock, as hasty says."""
    return As(hasty(INT), (session,))


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


REFUSALS: LiteralString = "id, state, problem, holder"  # the columns of refusals()
SETTLED: LiteralString = "state, problem, holder"  # the columns of settled()


def refusals(rows: Rows) -> list[Refused]:
    return [Refused(*row) for row in rows]


def settled(id: int, fence: Fence) -> Callable[[Rows], str]:
    def read(rows: Rows) -> str:
        state, problem, holder = rows[0]
        if problem:
            raise refusal(id, state, problem, holder, fence.me)
        return str(state)

    return read
