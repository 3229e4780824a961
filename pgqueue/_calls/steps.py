"""Calls of 6_families/steps.sql."""

from __future__ import annotations

from typing import NamedTuple

from .._values import arguments
from ..errors import refusal
from .call import SETTLED, Call, Fence, Rows, call


class Recorded(NamedTuple):
    """The recorded value of a step: JSON text, or None without a record."""

    value: str | None


def get_step(id: int, fence: Fence, name: str) -> Call[Recorded]:
    def read(rows: Rows) -> Recorded:
        recorded, value, state, problem, holder = rows[0]
        if problem:
            raise refusal(id, state, problem, holder, fence.me)
        return Recorded(value if recorded else None)

    return call(
        "get_step",
        f"recorded, value::pg_catalog.text, {SETTLED}",
        read,
        **fence.of(id),
        name=_name(name),
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

    return call(
        "record_step",
        f"kept::pg_catalog.text, {SETTLED}",
        read,
        **fence.of(id),
        name=name,
        value=text,
    )
