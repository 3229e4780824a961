"""The base of the records that calls return: they can be given to a serializer."""

from __future__ import annotations

import dataclasses
from datetime import datetime
from typing import Any

from .marked import written


class Record:
    """A dataclass that a call returns."""

    __slots__ = ()

    def as_dict(self) -> dict[str, Any]:
        """The fields by name, as JSON can hold them: times as ISO 8601 text, records as dicts, bytes as
        {"$bytes": base64}.

        A field that repr() hides is left out: the token of a task, which is the right to settle it.
        """
        fields = dataclasses.fields(self)  # type: ignore[arg-type]  # each subclass is a dataclass
        return {field.name: plain(getattr(self, field.name)) for field in fields if field.repr}


def plain(value: Any) -> Any:
    """A field's value as JSON can hold it; lists and dicts are copied."""
    if isinstance(value, Record):
        return value.as_dict()
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, bytes):
        return written(value)
    if isinstance(value, dict):
        return {name: plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    return value
