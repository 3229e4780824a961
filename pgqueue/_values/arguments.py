"""Checks of arguments, before anything is sent. Each error names the argument and its valid values."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from datetime import datetime, timedelta
from numbers import Real
from typing import Literal, TypeAlias, get_args
from uuid import UUID

from ..errors import TaskIdRequired

MAX_SECONDS = 1e9  # about 31 years; beyond it a timestamp is a mistake in units
MAX_INT = 2**31 - 1
MAX_ELEMENTS = 100_000  # of the arguments of one call; as in sql/2_base/bounds.sql
MAX_KEY = 255  # bytes, of an exchange's name and of a routing key: as in AMQP
Seconds: TypeAlias = float | timedelta  # the type of every duration
IfExists = Literal["ignore", "error", "replace"]  # the action of a put when a task has its key already
_DIGITS = re.compile(r"[0-9]{1,19}", re.ASCII)


def seconds(name: str, value: Seconds | None, *, positive: bool = False) -> float | None:
    """A duration as a number of seconds, or None. Raises ValueError for negative, NaN, too long, or another type."""
    if value is None:
        return None
    number = _number(name, value)
    if math.isnan(number) or number < 0 or number > MAX_SECONDS or (positive and number == 0):
        raise ValueError(f"{name} must be {'over 0' if positive else '0'} to {MAX_SECONDS:.0e} seconds, not {value!r}")
    return number


def required_seconds(name: str, value: Seconds, *, positive: bool = False) -> float:
    """As seconds, but None is refused too."""
    number = seconds(name, value, positive=positive)
    if number is None:
        raise ValueError(f"{name} must be a number of seconds or a timedelta, not None")
    return number


def timeout(value: Seconds | None) -> float | None:
    """A timeout in seconds: None waits without limit, 0 does not wait. There is no maximum. Raises ValueError."""
    if value is None:
        return None
    number = _number("timeout", value, " or None")
    if math.isnan(number):
        raise ValueError(f"timeout must be a number of seconds, a timedelta or None, not {value!r}")
    return None if number == math.inf else max(0.0, number)


def _number(name: str, value: object, otherwise: str = "") -> float:
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, bool) or not isinstance(value, Real):
        raise ValueError(f"{name} must be a number of seconds or a timedelta{otherwise}, not {value!r}")
    return float(value)


def moment(name: str, value: datetime | None) -> datetime | None:
    """A point in time with its time zone, or None. Raises ValueError, also for a naive datetime."""
    if value is None:
        return None
    if not isinstance(value, datetime):
        raise ValueError(f"{name} must be a datetime, not {value!r}")
    if value.tzinfo is None or value.utcoffset() is None:
        raise ValueError(f"{name} must have a time zone, as datetime.now(UTC) has; {value!r} has none")
    return value


def integer(name: str, value: int | None, low: int = -MAX_INT - 1, high: int = MAX_INT) -> int | None:
    """A whole number in a range, or None. Raises ValueError."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise ValueError(f"{name} must be a whole number from {low} to {high}, not {value!r}")
    return value


def count(name: str, value: int) -> int:
    """A whole number of at least 1. Raises ValueError."""
    if integer(name, value, 1) is None:
        raise ValueError(f"{name} must be a whole number from 1, not None")
    return value


def elements(name: str, number: int) -> None:
    """The number of elements of one call. Raises ValueError."""
    if number > MAX_ELEMENTS:
        raise ValueError(f"{name} has at most {MAX_ELEMENTS} elements, not {number}: split it into several calls")


def task_id(value: object) -> int:
    """A task's id from an int or a string of decimal digits. Raises TaskIdRequired."""
    if isinstance(value, str) and _DIGITS.fullmatch(value):
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise TaskIdRequired(f"a task id is an int or a string of digits, not {value!r}")
    if not 0 < value < 2**63:
        raise TaskIdRequired(f"a task id is from 1 to 2**63 - 1, not {value}")
    return value


def queue_name(value: object) -> str:
    """A queue's name: 1 to 200 characters, none of them NUL. Raises ValueError."""
    if not isinstance(value, str):
        raise ValueError(f"a queue's name is a string, not {value!r}")
    if not 1 <= len(value) <= 200:
        raise ValueError(f"a queue's name has 1 to 200 characters, this one has {len(value)}")
    if "\0" in value:
        raise ValueError(f"a queue's name cannot hold a NUL character: {value!r}")
    return value


def queue_names(value: Sequence[str]) -> list[str]:
    """A non-empty sequence of distinct names, in its order. Raises ValueError."""
    if isinstance(value, str):
        raise ValueError(f"a list of queue names is needed, not the string {value!r}")
    names = list(dict.fromkeys(queue_name(name) for name in value))
    if not names:
        raise ValueError("at least one queue name is needed")
    return names


def channel_name(value: object) -> str:
    """A channel's name: 1 to 63 bytes, none of them NUL, and not one of pgqueue's own. Raises ValueError."""
    if not isinstance(value, str):
        raise ValueError(f"a channel's name is a string, not {value!r}")
    if not 1 <= len(text(value, "a channel's name").encode()) <= 63:
        raise ValueError(f"a channel's name has 1 to 63 bytes, this one has {len(value.encode())}")
    if value.startswith("pgqueue:"):
        raise ValueError(f"a channel's name must not begin with pgqueue: as {value!r} does; such channels are internal")
    return value


def payload(value: object) -> str:
    """A payload: a string without NUL. Raises ValueError."""
    if not isinstance(value, str):
        raise ValueError(f"a payload is a string, not {type(value).__name__}: encode it, as JSON for example")
    return text(value, "a payload")


def label(name: str, value: object) -> str | None:
    """A lane or a key: 1 to 255 bytes, none of them NUL, or None. Raises ValueError."""
    if value is None:
        return None
    if not isinstance(value, str):
        raise ValueError(f"a {name} is a string, not {value!r}")
    if not 1 <= len(text(value, f"a {name}").encode()) <= 255:
        raise ValueError(f"a {name} has 1 to 255 bytes, this one has {len(value.encode())}")
    return value


def key(name: str, value: object) -> str:
    """A routing key, or the name of an exchange: up to 255 bytes, none of them NUL. Raises ValueError."""
    if not isinstance(value, str):
        raise ValueError(f"{name} must be a string, not {value!r}")
    if (size := len(text(value, name).encode())) > MAX_KEY:
        raise ValueError(f"{name} has at most {MAX_KEY} bytes, this one has {size}")
    return value


def flag(name: str, value: object) -> bool:
    """A bool, no other value that is true or false. Raises ValueError."""
    if not isinstance(value, bool):
        raise ValueError(f"{name} must be True or False, not {value!r}")
    return value


def if_exists(name: str, value: object) -> object:
    """One of IfExists. Raises ValueError."""
    if value not in get_args(IfExists):
        raise ValueError(f"{name} is one of {', '.join(get_args(IfExists))}, not {value!r}")
    return value


def uuid(name: str, value: object) -> UUID | None:
    """A UUID, as such or as text, or None. Raises ValueError."""
    if value is None or isinstance(value, UUID):
        return value
    try:
        return UUID(str(value))
    except ValueError:
        raise ValueError(f"{name} must be a UUID, not {value!r}") from None


def text(value: str, what: str) -> str:
    """A string that PostgreSQL can hold. Raises ValueError."""
    if "\0" in value:
        raise ValueError(f"{what} cannot hold a NUL character")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{what} cannot hold a lone surrogate: {value!r}") from None
    return value
