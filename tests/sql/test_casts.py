"""The casts of the library's calls are the types of the functions' arguments."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from statements import rows

import pgqueue
from pgqueue._calls import ack, casts, put, take
from pgqueue._calls.call import As, Fence, call, nothing, query, scalar, written
from pgqueue._calls.put_options import PLAIN

PACKAGE = Path(pgqueue.__file__).parent
TYPES = {
    casts.TEXT: "text",
    casts.INT: "integer",
    casts.BIGINT: "bigint",
    casts.BOOLEAN: "boolean",
    casts.JSONB: "jsonb",
    casts.UUID: "uuid",
    casts.MOMENT: "timestamp with time zone",
    casts.SECONDS: "interval",
    casts.EPOCH: "timestamp with time zone",
    casts.ROLE: "regrole",
    casts.INTS: "integer[]",
    casts.BIGINTS: "bigint[]",
    casts.BIGINTS_AS_TEXT: "bigint[]",
    casts.FLOATS: "double precision[]",
    casts.TEXTS: "text[]",
    casts.MOMENTS: "timestamp with time zone[]",
}


def called() -> Iterator[str]:
    """The functions that the library names in call(), shaped() and written()."""
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Call(ast.Name("call" | "shaped" | "written"), [ast.Constant(str() as function), *_]):
                    yield function


@pytest.mark.slow
def test_each_argument_has_the_type_that_its_function_wants(db: psycopg.Connection):
    wanted = rows(
        db,
        "SELECT p.proname, a.name, format_type(a.type, NULL)"
        " FROM pg_proc p, unnest(p.proargnames, p.proargtypes::oid[]) AS a (name, type)"
        " WHERE p.pronamespace = 'pgqueue'::regnamespace AND a.type IS NOT NULL AND p.proname = ANY (%s)",
        list(set(called())),
    )
    assert len(wanted) > 300
    wrong = []
    for function, name, type in wanted:
        try:
            cast = casts.cast(function, name)
        except KeyError:
            continue  # no call of the library has this argument
        if TYPES[cast] != type:
            wrong.append((function, name, type, cast))
    assert wrong == []


def test_a_call_has_the_text_of_its_function_and_arguments():
    one = call("ack", "state, problem", nothing, id=1, token=2)
    assert one.sql == "SELECT state, problem FROM pgqueue.ack(id => %s::bigint, token => %s::bigint)"
    assert (one.args, one.function, one.given) == ((1, 2), "ack", {"id": 1, "token": 2})
    assert call("sweep", None, scalar).sql == "SELECT pgqueue.sweep()"


@pytest.mark.parametrize("one", [
    put.put("q", "1", PLAIN),
    take.take("q", 1, 2, (3, 4)),
    take.take_many(["q"], 1, 2, 3, [None]),
    ack.ack(1, Fence(2, 3)),
], ids=lambda one: one.function)  # fmt: skip
def test_a_call_from_a_shape_is_that_from_its_arguments(one):
    again = one.but()
    assert (again.sql, again.args) == (one.sql, tuple(one.args))


def test_the_text_is_written_once():
    first, second = (call("ack", "state", nothing, id=id) for id in (1, 2))
    assert first.sql is second.sql
    assert call("ack", "state", nothing, token=1).sql is not first.sql


def test_an_argument_can_be_another_expression_of_several_values():
    key = As("a(%s, %s)", ("x", "y"))
    one = call("put", None, nothing, queue="q", key=key, priority=1)
    assert one.sql == "SELECT pgqueue.put(queue => %s::pg_catalog.text, key => a(%s, %s), priority => %s::int)"
    assert one.args == ("q", "x", "y", 1)
    assert one.but(key="k").sql.endswith("key => %s::pg_catalog.text, priority => %s::int)")
    assert one.but(key="k").args == ("q", "k", 1)


def test_an_argument_without_a_cast_is_refused():
    with pytest.raises(KeyError, match="colour"):
        call("put", None, nothing, colour=1)


def test_a_call_can_be_a_part_of_a_statement():
    part = written("find_tasks", "queue", "n", state="asked.state")
    assert part == "pgqueue.find_tasks(queue => %s::pg_catalog.text, n => %s::int, state => asked.state)"
    assert query(f"SELECT * FROM {part}", ("q", 1), list).function is None
