"""An exception as text, for the database and for logs. Nothing here raises: the exception's class is the user's."""

from __future__ import annotations

import os
import traceback
from typing import TypeVar

from ..errors import BadData

E = TypeVar("E", bound=BaseException)

_HERE = os.path.dirname(__file__) + os.sep

TOLD = "_pgqueue_told"  # an attribute of an error from a child process: its description there


class Traceback(Exception):
    """The traceback of an error in a child process, as the cause of the error here."""

    def __str__(self) -> str:
        return "\n" + "".join(self.args)


def describe(error: BaseException) -> str:
    """The error as text: its type, its message, and its place in the code. Never raises; any log can hold the text."""
    where = ""
    try:
        if isinstance(told := getattr(error, TOLD, None), str):
            return told
        for frame, line in traceback.walk_tb(error.__traceback__):
            where = f" ({os.path.basename(frame.f_code.co_filename)}:{line}, in {frame.f_code.co_name})"
        what = "".join(traceback.format_exception_only(error)).strip()  # str(error) may itself raise
    except BaseException:  # of any kind: the error's class is the user's
        what = type(error).__name__
    return (what + where).encode(errors="backslashreplace").decode()


def unkept(error: Exception) -> str:
    """Why a result cannot be written as JSON."""
    return f"{error.path}: {error.reason}" if isinstance(error, BadData) else describe(error)


def formatted(error: BaseException) -> str | None:
    """The exception with its traceback as text, as Python prints it; None if its class prevents that."""
    try:
        return "".join(traceback.format_exception(error)).encode(errors="backslashreplace").decode()
    except BaseException:
        return None


def unwrapped(error: E) -> E:
    """The exception with a traceback that begins in the handler, not in the worker that called it. That of a child's is
    its cause."""
    if isinstance(error.__cause__, Traceback):
        return error.with_traceback(None)
    begin, frame = error.__traceback__, error.__traceback__
    while frame is not None:
        if frame.tb_frame.f_code.co_filename.startswith(_HERE):
            begin = frame.tb_next
        frame = frame.tb_next
    if begin is not None:
        error.__traceback__ = begin
    return error
