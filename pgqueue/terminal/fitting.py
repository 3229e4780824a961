"""Tables that fit a terminal, drawn by Rich. This module is imported when the first one is drawn."""

from __future__ import annotations

import io
import textwrap

from rich.cells import cell_len
from rich.console import Console as RichConsole
from rich.table import Table as RichTable
from rich.text import Text

from .console import Console
from .tables import FOLDED, GAP, Column, Table, texted

Fitted = list[tuple[Column, list[Text], bool]]  # a column, its cells, and whether they are numbers


def fitted(table: Table, console: Console) -> list[str]:
    """The lines of a table that is at most as wide as the console; plain lines if even the least does not fit."""
    width = console.width
    columns = [
        (column, [_cell(column, value) for value in values], column.to_the_right(values))
        for column, values in zip(table.columns, table.values(), strict=True)
    ]
    left_out: list[str] = []
    while _least(columns) > width:
        spare = max(columns, key=lambda one: one[0].spare)
        if spare[0].spare == 0:
            return table.plain()  # the terminal wraps the lines
        left_out.append(spare[0].heading)
        columns.remove(spare)
    lines = _drawn(columns, width, console)
    if left_out:
        names = ", ".join(column.heading for column in table.columns if column.heading in left_out)
        said = textwrap.wrap(f"Too narrow for {names}: {table.more}.", width, break_long_words=False)
        lines += [console.styled(line, "dim") for line in said]
    return lines


def _drawn(columns: Fitted, width: int, console: Console) -> list[str]:
    drawn = RichTable(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="bold", show_edge=False)
    for (column, _, numeric), chosen in zip(columns, _widths(columns, width), strict=True):
        drawn.add_column(Text(column.heading), justify="right" if numeric else "left", overflow="fold", width=chosen)
    for row in zip(*(cells for _, cells, _ in columns), strict=True):
        drawn.add_row(*row)
    out = io.StringIO()
    rich = RichConsole(
        file=out,
        width=width,
        force_terminal=console.coloured,
        color_system="auto" if console.coloured else None,
        markup=False,
        emoji=False,
        highlight=False,
        legacy_windows=False,
    )
    rich.print(drawn)
    return [line.rstrip() for line in out.getvalue().splitlines()]


def _cell(column: Column, value: object) -> Text:
    style = column.style(value) if column.style is not None and value is not None else "dim" if value is None else ""
    return Text(texted(column.shown or column.plain, value), style)


def _widths(columns: Fitted, width: int) -> list[int]:
    """The widths of the columns in a table of at most this width: the widest that may fold become narrower.

    Rich chooses widths by itself, and takes from columns that must not fold, too. Their last characters are lost then.
    """
    widths = [_natural(column, cells) for column, cells, _ in columns]
    least = [_narrowest(column, cells) for column, cells, _ in columns]
    for _ in range(sum(widths) + GAP * (len(columns) - 1) - width):
        widest = max((n for n in range(len(widths)) if widths[n] > least[n]), key=widths.__getitem__)
        widths[widest] -= 1
    return widths


def _least(columns: Fitted) -> int:
    """The width of the narrowest table with these columns."""
    return sum(_narrowest(column, cells) for column, cells, _ in columns) + GAP * (len(columns) - 1)


def _natural(column: Column, cells: list[Text]) -> int:
    return max(cell_len(column.heading), *(cell.cell_len for cell in cells), 0)


def _narrowest(column: Column, cells: list[Text]) -> int:
    natural = _natural(column, cells)
    return min(natural, max(FOLDED, cell_len(column.heading))) if column.folds else natural
