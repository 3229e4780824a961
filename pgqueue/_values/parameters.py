"""Arguments of a statement in PostgreSQL's text format.

Each parameter of a statement has its type by a cast (`%s::bigint`), so the text alone is enough. psycopg looks up a
dumper for each value, by its type and size: for a list of numbers this takes ten times as long as joining them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

Text = bytes | None


class Unusual(Exception):
    """The arguments have a value that only psycopg knows how to send, or to refuse."""


def as_text(args: Sequence[Any]) -> list[Text]:
    """The arguments as text, None for NULL. Raises Unusual."""
    try:
        return [_AS_TEXT[type(value)](value) for value in args]
    except (KeyError, UnicodeEncodeError):
        raise Unusual from None


def _text(value: str) -> bytes:
    if "\0" in value:  # it would end the text
        raise Unusual
    return value.encode()


def _array(values: list[Any]) -> bytes:
    return _text("{" + ",".join([_IN_ARRAY[type(value)](value) for value in values]) + "}")


def _quoted(value: str) -> str:
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


#: By the exact type: a subclass may have a dumper of its own.
_AS_TEXT: dict[type, Callable[[Any], Text]] = {
    type(None): lambda value: None,
    int: lambda value: b"%d" % value,
    str: _text,
    float: lambda value: repr(value).encode(),
    bool: lambda value: b"true" if value else b"false",
    list: _array,
}
_IN_ARRAY: dict[type, Callable[[Any], str]] = {type(None): lambda value: "NULL", int: str, str: _quoted}
