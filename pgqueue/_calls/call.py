"""A call: the statement of one round trip, and how to read its rows. No I/O.

A call of one function is made from its parts: the function, its columns, and its arguments by name. The text of the
statement is written once for each set of arguments, with the casts of casts.py. Any other statement is a literal.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Generic, LiteralString, NamedTuple, TypeVar

from .._values import arguments
from ..errors import refusal
from .casts import INT, cast

T = TypeVar("T")
U = TypeVar("U")

MAX_TEXT = 65_536  # bytes of an error message; as in sql/2_base/bounds.sql
_CUT = " [cut]"
_HASTE: LiteralString = "CASE WHEN pg_catalog.set_config('lock_timeout', '100ms', true) IS NOT NULL THEN"
_AT_LEISURE: LiteralString = "pg_catalog.set_config('lock_timeout', '0', true)"


Rows = list[tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class Shape:
    """The common part of all calls of one function with the same arguments, such as the statement."""

    sql: LiteralString
    function: LiteralString
    columns: LiteralString | None  # None: the function returns one value
    names: tuple[LiteralString, ...]
    expressions: Mapping[str, LiteralString]  # of the arguments that are not their usual casts


@dataclass(slots=True, eq=False)
class Call(Generic[T]):
    """One round trip. call() makes it of a function, query() of any other statement.

    It is a value, and never changes. It is not declared frozen, since it is then made in 0.65 us in place of 0.17.

    Attributes:
        sql, args: the statement, and the values of its placeholders.
        read: makes the answer from the rows.
        long: it may change all tasks of a queue, so it has 40 times the client's call_timeout.
        shape: the function, and which arguments it has; None for another statement.
    """

    sql: LiteralString
    args: Sequence[Any]
    read: Callable[[Rows], T]
    long: bool = False
    shape: Shape | None = None
    _given: Mapping[str, Any] | None = None  # if it is not the names of the shape and `args`

    @property
    def function(self) -> LiteralString | None:
        """The SQL function; None for another statement."""
        return None if self.shape is None else self.shape.function

    @property
    def given(self) -> dict[str, Any]:
        """The function's arguments by name."""
        if self._given is not None or self.shape is None:
            return dict(self._given or {})
        whole = self.shape.expressions
        given = zip(self.shape.names, self.args, strict=True)
        return {name: As(whole[name], (value,)) if name in whole else value for name, value in given}

    def but(self, **given: Any) -> Call[T]:
        """The same call of a function, with other values for some of its arguments."""
        assert self.shape is not None
        return call(self.shape.function, self.shape.columns, self.read, long=self.long, **{**self.given, **given})

    def within(self, sql: LiteralString, args: Sequence[Any]) -> Call[T]:
        """The same call as a part of a larger statement."""
        return Call(sql, args, self.read, self.long, self.shape, self.given)

    def reading(self, read: Callable[[Rows], U]) -> Call[U]:
        """The same statement, of whose rows another answer is made."""
        return Call(self.sql, self.args, read, self.long, self.shape, self._given)

    def then(self, change: Callable[[T], U]) -> Call[U]:
        """The same statement, with an answer that is made of this one's."""
        return self.reading(lambda rows: change(self.read(rows)))


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
    args = tuple(given.values())
    if As not in map(type, args):
        shape = shaped(function, columns, *given)
        return Call(shape.sql, args, read, long, shape)
    shape = shaped(
        function, columns, *given, **{name: one.expression for name, one in given.items() if type(one) is As}
    )
    args = tuple([one for value in args for one in (value.values if isinstance(value, As) else (value,))])
    return Call(shape.sql, args, read, long, shape, given)


@cache  # there are as many as the library has calls
def shaped(
    function: LiteralString,
    columns: LiteralString | None,
    *names: LiteralString,
    **expressions: LiteralString,
) -> Shape:
    """The shape of calls. For those of a put, take and ack, which are made in half the time from its `sql`."""
    called = written(function, **{name: expressions.get(name) or cast(function, name) for name in names})
    sql: LiteralString = f"SELECT {called}" if columns is None else f"SELECT {columns} FROM {called}"
    if any(one.startswith(_HASTE) for one in expressions.values()):
        sql = then_without_haste(sql)
    return Shape(sql, function, columns, names, expressions)


def query(sql: LiteralString, args: Sequence[Any], read: Callable[[Rows], T], long: bool = False) -> Call[T]:
    """A statement that is not the call of one function: of a view, or of several functions."""
    return Call(sql, args, read, long)


def written(function: LiteralString, *names: LiteralString, **expressions: LiteralString) -> LiteralString:
    """The call of a function as a part of a statement for query(). `expressions` replace the usual casts."""
    usual = [(name, cast(function, name)) for name in names]
    listed: LiteralString = ", ".join([f"{name} => {one}" for name, one in (*usual, *expressions.items())])
    return f"pgqueue.{function}({listed})"


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
    needs no round trip, and no connection of its own. then_without_haste() ends it before the commit.
    """
    return f"{_HASTE} {argument} END"


def then_without_haste(sql: LiteralString) -> LiteralString:
    """A statement with hasty() in it, of the columns REFUSALS, whose commit waits for as long as it takes.

    A commit with a notification is a wait for a lock: PostgreSQL lets one pass after another. Behind 0.1 s of others
    it would fail, and with it all that the statement has settled. The last branch is executed last, and has no row.
    """
    return f"{sql} UNION ALL SELECT NULL, NULL, NULL, NULL WHERE {_AT_LEISURE} IS NULL"


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
