"""jsonify() for the records that calls of pgqueue return."""

from __future__ import annotations

from typing import Any

from flask import Flask
from flask.json.provider import DefaultJSONProvider

from ..._values.record import Record


def serialize_records(app: Flask) -> None:
    """Have jsonify(task) use as_dict().

    Flask serializes a dataclass by its fields: a task's token would be among them, and times would be in HTTP's form.
    """
    provider = app.json
    if not isinstance(provider, DefaultJSONProvider):  # the application's own; it may call as_dict()
        return
    otherwise = provider.default

    def default(value: Any) -> Any:
        return value.as_dict() if isinstance(value, Record) else otherwise(value)

    provider.default = default  # as Flask documents for an application
