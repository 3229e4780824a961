"""Task data as JSON text: encoded in one pass, and the place of the fault if the data is bad.

The encoder is the standard library's. It accepts three things that cannot be stored: NUL characters, lone surrogates,
and text over the limit. It also changes a key that is not a string into a string, so that a take would return other
data than those put. The check of its output for all of these is cheap. Only if it finds one, a walk through the data,
which is slow, finds the place. (A key such as "1" costs a short walk, since the output is the same as for the number.)
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from ..errors import BadData
from .reading import read_by_json, reader_by_msgspec

MAX_SIZE = 1 << 20

_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode
# The text of a key that was a number, a bool or None. The first is five times as fast, and may find "line1" too: it
# looks for a literal, and back from there.
_may_be_another_key = re.compile(r'":(?<=[0-9el]":)(?:(?<=[0-9]":)|(?<="true":)|(?<="false":)|(?<="null":))').search
_like_another_key = re.compile(r'"(?:-?[0-9][0-9.e+-]*|true|false|null)":').search

#: The value of a JSON text. jsonb holds numbers that a float does not: ValueError, where json.loads would return inf or
#: 0. Whole numbers of up to 4300 digits are read exactly.
decode = reader_by_msgspec() or read_by_json


def encode(data: Any, max_size: int = MAX_SIZE) -> str:
    """`data` as JSON text of at most `max_size` bytes.

    Raises:
        BadData: JSON, or PostgreSQL's jsonb, cannot hold the data; the error names the place.
    """
    try:
        text = _encode(data)
        size = len(text) if text.isascii() else len(text.encode())
    except (TypeError, ValueError, RecursionError) as error:
        raise _fault(data) or BadData("$", str(error)) from None
    suspicious = "\\u0000" in text or (_may_be_another_key(text) and _like_another_key(text) and _has_another_key(data))
    if suspicious and (fault := _fault(data)):
        raise fault
    if size > max_size:
        reason = f"{size} bytes of JSON, the limit is {max_size}: store the bulk elsewhere, or set max_data_size"
        raise BadData("$", reason)
    return text


class Unreadable(str):
    """The JSON text of data that Python cannot hold: a number of thousands of digits, or too many brackets.

    It replaces the data where a task is shown, or was removed already: an error there would lose the task, and the
    others of the same call.
    """

    __slots__ = ()


def shown(text: str) -> Any:
    """The value of a JSON text, or the text itself, as Unreadable."""
    try:
        return decode(text)
    except (ValueError, RecursionError):
        return Unreadable(text)


def decode_if_any(text: str | None) -> Any:
    """The value of a JSON text; None for None."""
    return None if text is None else decode(text)


def encode_many(items: list[Any], max_size: int = MAX_SIZE, first: int = 0) -> str:
    """The items as one JSON array. A BadData names the index of its item, counted from `first`, as in `[17]$.name`.

    Encoding all items at once is three times as fast as one by one. If that fails, one of the items is bad, or only
    their total is too large.
    """
    try:
        return encode(items, max_size)
    except BadData:
        return "[" + ",".join(_encode_each(items, max_size, first)) + "]"


def encode_chunks(items: Iterable[Any], size: int, max_size: int = MAX_SIZE) -> Iterator[str]:
    """As encode_many, in several arrays of up to `size` items each."""
    left = iter(items)
    first = 0
    while chunk := list(islice(left, size)):
        yield encode_many(chunk, max_size, first)
        first += len(chunk)


def _encode_each(items: list[Any], max_size: int, first: int) -> Iterator[str]:
    for index, item in enumerate(items, first):
        try:
            yield encode(item, max_size)
        except BadData as error:
            raise BadData(f"[{index}]{error.path}", error.reason) from None


def _has_another_key(data: Any) -> bool:
    """Whether a key is not a string, in data that could be encoded."""
    left = [data]
    while left:
        value = left.pop()
        if isinstance(value, dict):
            if not all(isinstance(key, str) for key in value):
                return True
            left.extend(value.values())
        elif isinstance(value, list | tuple):
            left.extend(value)
    return False


def _fault(data: Any) -> BadData | None:
    try:
        return next((BadData(path, reason) for path, reason in _faults(data, "$", ())), None)
    except RecursionError:
        return BadData("$", "it is nested too deep")


def _faults(value: Any, path: str, above: tuple[int, ...]) -> Iterator[tuple[str, str]]:
    if id(value) in above:
        yield path, "contains itself"
    elif isinstance(value, str):
        yield from _faults_of_text(value, path)
    elif isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                yield path, f"a key must be a string, not {key!r}"
            yield from _faults_of_text(str(key), f"{path}.{key}")
            yield from _faults(item, f"{path}.{key}", (*above, id(value)))
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _faults(item, f"{path}[{index}]", (*above, id(value)))
    elif isinstance(value, float) and not math.isfinite(value):
        yield path, f"JSON has no {value}"
    elif value is not None and not isinstance(value, int | float):
        yield path, f"JSON cannot hold a {type(value).__name__}"


def _faults_of_text(text: str, path: str) -> Iterator[tuple[str, str]]:
    if "\0" in text:
        yield path, "PostgreSQL's jsonb cannot hold the character \\u0000"
    try:
        text.encode()
    except UnicodeEncodeError:
        yield path, "a lone surrogate is not a character"
