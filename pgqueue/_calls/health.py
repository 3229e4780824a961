"""Calls of 5_operations/health.sql: checks of the database as a whole."""

from __future__ import annotations

from typing import Literal, NamedTuple

from .call import Call


class Check(NamedTuple):
    """A row of the view pgqueue.health."""

    name: str
    status: Literal["ok", "warn", "bad"]
    value: float  # may be infinity
    unit: str
    detail: str


def health() -> Call[list[Check]]:
    return Call(
        "SELECT name, status, value, unit, detail FROM pgqueue.health", (), lambda rows: [Check(*row) for row in rows]
    )
