"""The value of a JSON text: read by msgspec if it is installed (the extra `fast`), else by the standard library.

Bytes, and texts that jsonb cannot hold, have their marked form in the text (marked.py).

Both give the same value or the same error. msgspec takes from a quarter to two thirds of the time. A text that it
refuses, for example for a lone surrogate, is read again by the standard library, which accepts it or raises its own
error. In texts that msgspec accepts, only numbers could differ; it reads whole numbers of any length exactly, and hands
the text of every other number to `_float`, as the standard library does.

Data is not written by msgspec. Fast encoders write null for NaN, text for bytes, dates and UUIDs, and a list for a set,
all of which are BadData here. A walk through the data would have to find them, and a put would gain 1 us of 76.
(orjson, as fast as msgspec, cannot be used for reading either: it reads 2**64 as a float, and 1e-400 as 0.)
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from typing import Any

from . import marked

_is_not_zero = re.compile(r"-?[0.]*[1-9]").match


def _float(text: str) -> float:
    """A number with a point or an exponent, rounded to a float. Raises ValueError if it is too large or too small."""
    number = float(text)
    if math.isinf(number) or (number == 0 and _is_not_zero(text)):
        raise ValueError(f"the number {text[:20]}..., of {len(text)} characters, is out of the range of a float")
    return number


_decoder = json.JSONDecoder(parse_float=_float)
_raw = _decoder.raw_decode


def read_by_json(text: str) -> Any:
    """The value of a JSON text, by the standard library.

    Raises:
        ValueError: also for brackets that are nested too deep. A RecursionError counts as a fault of a handler, after
            which a task is tried again, and this one would fail each time.
    """
    try:
        try:
            value, end = _raw(text)
        except ValueError:
            end = -1  # white space before it, or a fault
        # decode() alone would look for white space first, which takes as long as to read a short text.
        whole = value if end == len(text) else _decoder.decode(text)
        return marked.restored(whole) if "$" in text and marked.MARK in text else whole
    except RecursionError:
        raise ValueError(f"brackets are nested too deep, in a JSON text of {len(text)} characters") from None


def reader_by_msgspec() -> Callable[[str], Any] | None:
    """A function that reads as read_by_json does, but faster; None without msgspec."""
    try:
        from msgspec.json import Decoder

        read = Decoder(float_hook=_float).decode
    except (ImportError, TypeError):  # it is not installed, or so old that it has no float_hook
        return None

    def read_by_msgspec(text: str) -> Any:
        try:
            value = read(text)
            return marked.restored(value) if "$" in text and marked.MARK in text else value
        except Exception:
            pass  # not read_by_json() in here: its error would have msgspec's as its context
        return read_by_json(text)

    return read_by_msgspec
