"""Errors and log records of a child process, as its worker reads them. JSON both ways."""

from __future__ import annotations

import contextlib
import importlib
import json
import logging
import signal
import traceback
from collections.abc import Callable
from typing import Any

from .._calls.results import Outcome
from .._values.logs import unfailing
from .describing import TOLD, Traceback, describe, unwrapped

SOFT = signal.SIGXCPU  # raises SoftTimeLimit in a child; the system's own soft limit, which handlers hardly use
VERBS = frozenset({"ack", "release", "bury", "touch", "finish", "fail", "requeue", "progress"})  # that a child asks for
LONGEST = 1 << 16  # characters of a traceback or message: a log is no place for more


class Failed(Exception):
    """A handler in a child process has raised.

    Attributes:
        error: an exception of the same class, with the same arguments and attributes as far as JSON holds them; a
            RuntimeError if that class cannot be imported here.
        text: the error with its place, as the worker keeps it with the task.
        traceback: of the child.
    """

    def __init__(self, told: dict[str, Any]) -> None:
        self.text: str = told["text"]
        self.traceback: str = told["traceback"]
        self.error = _rebuilt(told)
        self.error.__cause__ = Traceback(self.traceback)
        with contextlib.suppress(Exception):
            setattr(self.error, TOLD, self.text)
        super().__init__(self.text)


def tell_error(error: BaseException) -> dict[str, Any]:
    """An error as JSON; in the child."""
    kind = type(error)
    try:
        trace = "".join(traceback.format_exception(unwrapped(error)))
    except BaseException:  # of any kind: the error's class is the user's
        trace = kind.__name__
    try:
        args, state = list(error.args), dict(vars(error))
    except BaseException:  # the same: args may be a property
        args, state = [describe(error)], {}
    return {
        "module": kind.__module__,
        "name": kind.__qualname__,
        "args": _if_json(args, [describe(error)]),
        "state": {name: value for name, value in state.items() if _if_json(value, None) is not None},
        "text": describe(error),
        "traceback": trace[-LONGEST:].encode(errors="backslashreplace").decode(),
    }


def tell_outcome(outcome: Outcome) -> dict[str, Any]:
    """An outcome of Task.results() as JSON, for the child."""
    return {name: getattr(outcome, name) for name in ("id", "state", "queue", "result", "has_result", "error")}


def tell_log(record: logging.LogRecord) -> dict[str, Any]:
    """A log record as JSON; in the child."""
    try:
        message = record.getMessage()
    except Exception as error:
        message = f"{record.msg!r} cannot be formatted: {describe(error)}"
    told: dict[str, Any] = {
        name: getattr(record, name)
        for name in ("name", "levelno", "levelname", "pathname", "lineno", "funcName", "created", "process")
    }
    told["msg"] = message[:LONGEST].encode(errors="backslashreplace").decode()
    if record.exc_info:
        told["exc_text"] = logging.Formatter().formatException(record.exc_info)[-LONGEST:]
    known = vars(logging.makeLogRecord({})).keys() | told.keys()
    told["extra"] = {
        name: value for name, value in vars(record).items() if name not in known and _if_json(value, None) is not None
    }
    return told


def tell_levels() -> dict[str, int]:
    """The levels of this process's loggers that have one, by name; that of the root logger by an empty name."""
    loggers = dict(logging.Logger.manager.loggerDict)
    levels = {name: logger.level for name, logger in loggers.items() if isinstance(logger, logging.Logger)}
    return {"": logging.getLogger().level} | {name: level for name, level in levels.items() if level != logging.NOTSET}


def hear_levels(levels: dict[str, int]) -> None:
    """Set them in the child, which has no other configuration: every record that the worker would log is sent to it."""
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)


def hear_log(told: dict[str, Any]) -> None:
    """Log a child's record here, with the handlers and levels of this process."""
    logger = logging.getLogger(told["name"])
    if logger.isEnabledFor(told["levelno"]):
        with unfailing(told["msg"]):
            logger.handle(logging.makeLogRecord(told.pop("extra", {}) | told))


def resolved(module: str, name: str) -> Any:
    """The object of that name. Raises ImportError, AttributeError."""
    found = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    return found


def _rebuilt(told: dict[str, Any]) -> BaseException:
    try:
        kind = resolved(told["module"], told["name"])
        if not issubclass(kind, BaseException):
            raise TypeError(kind)
        error: BaseException = kind.__new__(kind, *told["args"])
        error.args = tuple(told["args"])
        for name, value in told["state"].items():
            with contextlib.suppress(Exception):  # a property, say
                setattr(error, name, value)
    except Exception:
        return RuntimeError(told["text"])
    return error


def _if_json(value: Any, otherwise: Any, dumps: Callable[[Any], str] = json.dumps) -> Any:
    try:
        dumps(value)
    except (TypeError, ValueError, RecursionError):
        return otherwise
    return value
