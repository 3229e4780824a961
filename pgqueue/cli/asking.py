"""Asking before what cannot be undone. A script says --yes; one that does not is refused."""

from __future__ import annotations

import sys

import click


def confirm(question: str, yes: bool) -> None:
    """Go on if the user says so.

    Raises:
        click.UsageError: there is nobody to ask.
        click.Abort: the answer is no.
    """
    if yes:
        return
    if sys.stdin is None or not sys.stdin.isatty():
        raise click.UsageError("this cannot be undone, and there is no terminal to ask at: give --yes")
    click.confirm(question, abort=True, err=True)
