"""Tables: fitted to a terminal for people, and in a plain form that stays the same for scripts.

On a terminal, columns become narrower by folding their texts. If that is not enough, whole columns are left out, the
least important ones first, and a last line names them. Nothing is cut. Elsewhere there is a line for each row, as wide
as it has to be.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from .._values import printable

GAP = 2  # spaces between columns
FOLDED = 16  # characters: a text in a foldable column is not made narrower


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table.

    Attributes:
        heading: its name, in capitals.
        spare: when it is left out of a table that is too wide: the columns with the highest number first, and those
            with 0 never.
        folds: whether a long text is folded to several lines.
        plain: the text of a value for scripts. None: `text` of this module.
        shown: the text of a value for people. None: as `plain`.
        style: the style of a value, in words of Rich, for example "red".
        right: whether it is aligned to the right. None: if it has a number.
    """

    heading: str
    spare: int = 0
    folds: bool = False
    plain: Callable[[Any], str] | None = None
    shown: Callable[[Any], str] | None = None
    style: Callable[[Any], str] | None = None
    right: bool | None = None

    def to_the_right(self, values: Iterable[Any]) -> bool:
        """Whether a column with these values is aligned to the right."""
        return any(isinstance(value, int | float) for value in values) if self.right is None else self.right


@dataclass(slots=True)
class Table:
    """Rows under headings.

    Attributes:
        columns: the columns.
        rows: the values of each row, as many as columns; None is shown as `-`.
        more: how a reader sees columns that were left out, a part of a sentence.
    """

    columns: Sequence[Column]
    rows: Sequence[Sequence[Any]] = field(default_factory=list)
    more: str = "--json shows all"

    def plain(self) -> list[str]:
        """The lines for scripts: columns that two spaces separate, numbers to the right."""
        texts = [
            [column.heading, *(texted(column.plain, value) for value in values)]
            for column, values in zip(self.columns, self.values(), strict=True)
        ]
        aligned = []
        for column, values, lines in zip(self.columns, self.values(), texts, strict=True):
            align = str.rjust if column.to_the_right(values) else str.ljust
            width = max(map(len, lines))
            aligned.append([align(one, width) for one in lines])
        return ["  ".join(line).rstrip() for line in zip(*aligned, strict=True)]

    def values(self) -> list[list[Any]]:
        """The values of each column."""
        return [[row[n] for row in self.rows] for n in range(len(self.columns))]


def texted(how: Callable[[Any], str] | None, value: Any) -> str:
    """A value as one line that no terminal obeys."""
    return "-" if value is None else printable.line((how or text)(value))


def text(value: Any) -> str:
    """A value as a text: times in ISO 8601, with the offset of this machine's zone."""
    return value.astimezone().isoformat(" ", "seconds") if isinstance(value, datetime) else str(value)
