"""Calls of 4_families/steps.sql."""

from __future__ import annotations

from typing import NamedTuple

from .._values import arguments
from ..errors import refusal
from .call import Call, Fence, Rows


class Recorded(NamedTuple):
    """The recorded value of a step: JSON text, or None without a record."""

    value: str | None


def get_step(id: int, fence: Fence, name: str) -> Call[Recorded]:
    def read(rows: Rows) -> Recorded:
        recorded, value, state, problem, holder = rows[0]
        if problem:
            raise refusal(id, state, problem, holder, fence.me)
        return Recorded(value if recorded else None)

    return Call(
        "SELECT recorded, value::pg_catalog.text, state, problem, holder FROM pgqueue.get_step("
        "id => %s::bigint, token => %s::bigint, session => %s::int, name => %s::pg_catalog.text)",
        (id, fence.token, fence.session, _name(name)),
        read,
    )


def _name(name: str | None) -> str:
    if (known := arguments.label("step's name", name)) is None:
        raise ValueError("a step needs a name")
    return known


def record_step(id: int, fence: Fence, name: str, text: str) -> Call[str]:
    """Record a step. The answer is the value of the name's first record, as JSON text."""

    def read(rows: Rows) -> str:
        kept, state, problem, holder = rows[0]
        if problem:
            raise refusal(id, state, problem, holder, fence.me)
        return str(kept)

    return Call(
        "SELECT kept::pg_catalog.text, state, problem, holder FROM pgqueue.record_step("
        "id => %s::bigint, token => %s::bigint, session => %s::int, name => %s::pg_catalog.text,"
        " value => %s::pg_catalog.jsonb)",
        (id, fence.token, fence.session, name, text),
        read,
    )
