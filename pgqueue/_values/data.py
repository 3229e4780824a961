"""Task data as JSON text: encoded in one pass, and the place of the fault if the data is bad.

The encoder is the standard library's. Bytes have a marked form, and so have texts with NUL or lone surrogates, which
jsonb cannot hold (marked.py). The encoder accepts three things that cannot be stored: such a text as a key, an object
that looks like a marked form, and text over the limit. It also changes a key that is not a string into a string, so
that a take would return other data than those put. The check of its output for all of these is cheap. Only if it finds
one, a walk through the data, which is slow, finds the place. (A key such as "1" costs a short walk, since the output is
the same as for the number, and so do bytes inside of other data.)
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, NoReturn

from ..errors import BadData
from . import marked
from .reading import read_by_json, reader_by_msgspec

MAX_SIZE = 1 << 20  # bytes: the default of max_data_size
MOST_SIZE = 64 << 20  # bytes: the database accepts no more
STORED = (str, int, float, bytes, bytearray, memoryview)  # beside None, lists, tuples and dicts

_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=marked.written).encode
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
    if type(data) is bytes:  # in a seventh of the time
        text = marked.form_of(data)
        return text if len(text) <= max_size else _too_large(len(text), max_size)
    try:
        text = _encode(data)
        size = _size(text)
        if is_odd := size is None or "\\u0000" in text:
            text = _encode(marked.texts_written(data))
            size = len(text.encode())
    except (TypeError, ValueError, RecursionError) as error:
        raise _fault(data) or BadData("$", str(error)) from None
    suspicious = (
        is_odd
        or ("$" in text and marked.MARK in text and marked.is_in(data))  # nearly free where there is no $
        or (_may_be_another_key(text) and _like_another_key(text) and _has_another_key(data))
    )
    if suspicious and (fault := _fault(data)):
        raise fault
    return text if size <= max_size else _too_large(size, max_size)


def _too_large(size: int, max_size: int) -> NoReturn:
    reason = f"{size} bytes of JSON, the limit is {max_size}: store the bulk elsewhere, or set max_data_size"
    raise BadData("$", reason)


def _size(text: str) -> int | None:
    """In UTF-8; None for a text with lone surrogates."""
    try:
        return len(text) if text.isascii() else len(text.encode())
    except UnicodeEncodeError:
        return None


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
    elif isinstance(value, dict):
        if marked.looks_marked(value):
            yield path, f"an object with the one key {next(iter(value))} stands for bytes or a text: put that"
        for key, item in value.items():
            if not isinstance(key, str):
                yield path, f"a key must be a string, not {key!r}"
            yield from _faults_of_key(str(key), f"{path}.{key}")
            yield from _faults(item, f"{path}.{key}", (*above, id(value)))
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _faults(item, f"{path}[{index}]", (*above, id(value)))
    elif isinstance(value, float) and not math.isfinite(value):
        yield path, f"JSON has no {value}"
    elif value is not None and not isinstance(value, STORED):
        yield path, f"JSON cannot hold a {type(value).__name__}"


def _faults_of_key(key: str, path: str) -> Iterator[tuple[str, str]]:
    if "\0" in key:
        yield path, "a key of PostgreSQL's jsonb cannot hold the character \\u0000"
    try:
        key.encode()
    except UnicodeEncodeError:
        yield path, "a lone surrogate is not a character, as a key needs"
