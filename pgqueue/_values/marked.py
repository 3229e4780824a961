r"""Bytes and texts that jsonb cannot hold, in a marked form of JSON.

    b"\x00\xff"   {"$bytes": "AP8="}   base64
    "a\0b"        {"$text": "YQBi"}    base64 of its UTF-8; a lone surrogate is three bytes there

An object is one of these if its only key is a mark and its value is base64; line breaks in it, which PostgreSQL's
encode() writes, are skipped. Other objects with such a key are read unchanged, but Python cannot put them: a
take would not return the data of the put.

A column of type bytea was measured beside it: docs/design.md has the figures of both. Base64 takes a third more room
than bytes, and hexadecimal digits twice as much.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from typing import Any

BYTES, TEXT = "$bytes", "$text"
MARK = '{"$'  # in each JSON text with a marked form, as written by data.encode() and by jsonb


def text_of(content: bytes) -> str | bytes:
    """Bytes as text if they are UTF-8 without NUL, which JSON shows as it is; else the bytes."""
    if b"\0" not in content:
        try:
            return content.decode()
        except UnicodeDecodeError:
            pass
    return content


def bytes_of(text: str | bytes) -> bytes:
    """The bytes that text_of() was given."""
    return text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")


def written(value: Any) -> dict[str, str]:
    """The form of bytes: for json.dumps(default=...). Raises TypeError for all else."""
    if isinstance(value, bytes | bytearray | memoryview):
        return {BYTES: b64encode(value).decode("ascii")}
    raise TypeError(f"JSON cannot hold a {type(value).__name__}")


def form_of(content: bytes) -> str:
    """The JSON text of bytes."""
    return f'{{"{BYTES}":"{b64encode(content).decode("ascii")}"}}'


def texts_written(value: Any) -> Any:
    """A copy of a value in which each text that jsonb cannot hold has its form. Keys of objects have none."""
    if isinstance(value, str):
        return value if _fits(value) else {TEXT: b64encode(value.encode("utf-8", "surrogatepass")).decode("ascii")}
    if isinstance(value, dict):
        return {key: texts_written(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [texts_written(one) for one in value]
    return value


def restored(value: Any) -> Any:
    """The value of a JSON text with bytes and texts in place of their forms; changes the objects and arrays in it."""
    if isinstance(value, dict):
        if looks_marked(value) and (meant := _meant(value)) is not None:
            return meant
        for key, one in value.items():
            if isinstance(one, dict | list):
                value[key] = restored(one)
    elif isinstance(value, list):
        for index, one in enumerate(value):
            if isinstance(one, dict | list):
                value[index] = restored(one)
    return value


def looks_marked(value: dict[Any, Any]) -> bool:
    """Whether an object could be taken for the form of something else."""
    return len(value) == 1 and (BYTES in value or TEXT in value)


def is_in(value: Any) -> bool:
    """Whether such an object is in data that could be encoded."""
    left = [value]
    while left:
        one = left.pop()
        if isinstance(one, dict):
            if looks_marked(one):
                return True
            left.extend(one.values())
        elif isinstance(one, list | tuple):
            left.extend(one)
    return False


def _fits(text: str) -> bool:
    if "\0" in text:
        return False
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _meant(form: dict[str, Any]) -> bytes | str | None:
    ((mark, held),) = form.items()
    try:
        content = b64decode(held.replace("\n", ""), validate=True)
        return content if mark == BYTES else content.decode("utf-8", "surrogatepass")
    except (AttributeError, ValueError):
        return None
