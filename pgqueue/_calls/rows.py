"""Rows of views, unchanged, for people."""

from __future__ import annotations

from typing import Any, LiteralString

from .call import Call, query

Row = dict[str, Any]


def rows(columns: tuple[LiteralString, ...], rest: LiteralString, *args: Any) -> Call[list[Row]]:
    """A statement that returns a dict for each row. The last word of a column is its name."""
    names = [column.split()[-1].rpartition(".")[2] for column in columns]
    chosen: LiteralString = ", ".join(columns)
    return query(
        "SELECT " + chosen + " " + rest, args, lambda found: [dict(zip(names, row, strict=True)) for row in found]
    )
