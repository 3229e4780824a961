"""The question before a command that cannot be undone. A script has to give --yes."""

from __future__ import annotations

import sys

import click

from .._values import printable


def confirm(question: str, yes: bool) -> None:
    """Ask the user, and return if the answer is yes.

    Raises:
        click.UsageError: standard input is not a terminal.
        click.Abort: the answer is no, or there is none.
        KeyboardInterrupt: Ctrl-C.
    """
    if yes:
        return
    if sys.stdin is None or not sys.stdin.isatty():
        raise click.UsageError("this cannot be undone, and there is no terminal to ask at: give --yes")
    try:
        agreed = click.confirm(printable.line(question), err=True)
    except click.Abort as abort:
        if isinstance(abort.__context__, KeyboardInterrupt):
            raise KeyboardInterrupt from None  # an exit code of its own
        raise
    if not agreed:
        raise click.Abort
