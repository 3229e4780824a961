"""The end of a command: one line about an error, and an exit code for scripts. docs/guides/cli.md has the table."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from collections.abc import Callable
from typing import Any, NoReturn

import click
import psycopg

from .._values import printable
from ..errors import BadData, ClaimDoesNotExist, Error, NoQueue, QueueFull, TaskError
from .grouping import suggestion
from .printing import flush

FAILED = 1
WRONG = 2  # the command line or standard input is not valid
NOTHING = 3  # there was no task or payload in time, or no room
GONE = 4  # the task or the claim is gone, or belongs to another taker; the lock was lost
INTERRUPTED = 130  # a shell's exit code for SIGINT

_CODES: list[tuple[tuple[type[Exception], ...], int]] = [
    ((QueueFull,), NOTHING),
    ((TaskError, ClaimDoesNotExist), GONE),
    ((BadData, ValueError), WRONG),  # ValueError: an argument that a call refuses
]


class Fault(click.ClickException):
    """One line on standard error, and an exit code."""

    def __init__(self, message: str, exit_code: int = FAILED) -> None:
        super().__init__(printable.line(" ".join(message.split())))
        self.exit_code = exit_code  # type: ignore[misc]  # click reads the instance's


def nothing() -> NoReturn:
    """End without a message, as grep does: "nothing" is an answer and not an error."""
    sys.exit(NOTHING)


def plainly(function: Callable[..., Any]) -> Callable[..., Any]:
    """Print an error of the library or the server as one line without a traceback, and end silently after `| head`."""

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        try:
            try:
                return function(*args, **kwargs)
            finally:
                flush()  # else the interpreter flushes at its end, and prints a complaint if that fails
        except BrokenPipeError:
            _forget_output()
            sys.exit(FAILED)
        except KeyboardInterrupt:
            sys.exit(INTERRUPTED)
        except (Error, ValueError, ImportError, psycopg.Error) as error:  # ImportError: an extra is missing
            raise _fault(error) from error
        except OSError as error:  # a full disk, for example
            _forget_output()
            raise Fault(f"{error.strerror or error}") from error

    return wrapper


def _forget_output() -> None:
    """Drop the output that could not be written: the interpreter would try to write it again at its end."""
    with contextlib.suppress(OSError):  # not a file
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fault(error: Exception) -> Fault:
    code = next((code for kinds, code in _CODES if isinstance(error, kinds)), FAILED)
    return Fault(str(error) + (_near_queues(str(error)) if isinstance(error, NoQueue) else ""), code)


def _near_queues(message: str) -> str:
    """A suggestion for a mistyped queue; empty if there is none, or the database does not answer at once.

    `rename-queue` has two queues, of which one need not exist: the message quotes the other one.
    """
    from .names import queue_names

    context = click.get_current_context(silent=True)
    if context is None:
        return ""
    given = [context.params.get(one.name or "") for one in context.command.params if one.type.name == "queue"]
    named = [name for value in given for name in ([value] if isinstance(value, str) else value or ())]
    names = [name for name in named if f'"{name}"' in message or f"'{name}'" in message]
    known = queue_names(context.obj, "") if names else []
    return "".join("." + near for name in names if name not in known and (near := suggestion(name, known)))
