"""How a command ends: one line on what went wrong, and a code for scripts. docs/guides/cli.md has the table."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from collections.abc import Callable
from typing import Any, NoReturn

import click
import psycopg

from ..errors import BadData, ClaimDoesNotExist, Error, QueueFull, TaskError
from .printing import flush

FAILED = 1
WRONG = 2  # the command line, or what came on standard input
NOTHING = 3  # nothing to take, nothing came in time, no room
GONE = 4  # the task or the claim is not there any more, or another's
INTERRUPTED = 130  # as a shell has it for SIGINT

_CODES: list[tuple[tuple[type[Exception], ...], int]] = [
    ((QueueFull,), NOTHING),
    ((TaskError, ClaimDoesNotExist), GONE),
    ((BadData,), WRONG),
]


class Fault(click.ClickException):
    """One line on standard error, and an exit code."""

    def __init__(self, message: str, exit_code: int = FAILED) -> None:
        super().__init__(" ".join(message.split()))
        self.exit_code = exit_code  # type: ignore[misc]  # click reads the instance's


def nothing() -> NoReturn:
    """End without a word, as grep does: that nothing came is an answer."""
    sys.exit(NOTHING)


def plainly(function: Callable[..., Any]) -> Callable[..., Any]:
    """An error that the library or the server explains is a line for the user, not a traceback. Nor is `| head`."""

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        try:
            try:
                return function(*args, **kwargs)
            finally:
                flush()  # what is left for the interpreter's end fails there, with a complaint
        except BrokenPipeError:
            _forget_output()
            sys.exit(FAILED)
        except KeyboardInterrupt:
            sys.exit(INTERRUPTED)
        except (Error, ValueError, psycopg.Error) as error:
            raise _fault(error) from error
        except OSError as error:  # a full disk, for example
            _forget_output()
            raise Fault(f"{error.strerror or error}") from error

    return wrapper


def _forget_output() -> None:
    """What the buffer still holds cannot be written, and the interpreter would try again at its end."""
    with contextlib.suppress(OSError):  # no file at all
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fault(error: Exception) -> Fault:
    code = next((code for kinds, code in _CODES if isinstance(error, kinds)), FAILED)
    return Fault(str(error), code)
