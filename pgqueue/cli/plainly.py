"""How a command ends: what went wrong is one line for the user.

Exit codes: 0 done, 1 it failed (one line on standard error says why), 2 the command line is wrong.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from typing import Any

import click
import psycopg

from .. import Error


def plainly(function: Callable[..., Any]) -> Callable[..., Any]:
    """An error that the library or the server explains is a line for the user, not a traceback. Nor is `| head`."""

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        try:
            try:
                return function(*args, **kwargs)
            finally:
                sys.stdout.flush()  # what is left for the interpreter's end fails there, with a complaint
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what the buffer still holds
            sys.exit(1)
        except (Error, ValueError, psycopg.Error) as error:
            raise click.ClickException(" ".join(str(error).split())) from error

    return wrapper
