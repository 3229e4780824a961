"""The two forms of a table: for the terminal that it is for, and for scripts."""

from __future__ import annotations

from . import console as consoles
from .console import Console
from .tables import Table


def drawn(table: Table, console: Console) -> list[str]:
    """The lines to write on the console: fitted to a terminal if Rich is there, else plain."""
    if not (console.terminal and consoles.has_rich()):
        return table.plain()
    from .fitting import fitted

    return fitted(table, console)
