"""A bar of Rich. This module is imported when the first bar is drawn."""

from __future__ import annotations

from collections.abc import Callable

from rich.console import Console as RichConsole
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn
from rich.table import Column

from .console import Console


def bar(console: Console, title: str, *, transient: bool) -> tuple[Progress, Callable[[str, float | None], None]]:
    """Begin a bar. Returns it, and the function that draws it again with other figures and another part done."""
    progress = Progress(
        SpinnerColumn("line", style="cyan"),
        TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True)),
        BarColumn(bar_width=None, table_column=Column(min_width=6, max_width=40, ratio=1)),
        TextColumn("{task.fields[figures]}", markup=False, table_column=Column(overflow="fold")),
        console=on(console),
        transient=transient,
        auto_refresh=False,
        redirect_stdout=False,
        redirect_stderr=False,
        expand=True,
    )
    task = progress.add_task(title, total=None, figures="")
    progress.start()
    progress.console.show_cursor(True)  # Rich hides it; it would stay hidden after a SIGTERM or SIGKILL

    def update(figures: str, part: float | None) -> None:
        total, completed = (None, 0.0) if part is None else (1.0, part)
        progress.update(task, total=total, completed=completed, figures=figures, refresh=True)

    return progress, update


def on(console: Console) -> RichConsole:
    """Rich's console for the stream. It reads no markup, no emoji code, and no number or path as something special.

    It measures the terminal at each drawing, so a bar follows a window that changes its width.
    """
    return RichConsole(
        file=console.stream,
        force_terminal=console.live,
        color_system="auto" if console.coloured else None,
        no_color=not console.coloured,
        markup=False,
        emoji=False,
        highlight=False,
        legacy_windows=False,
    )
