"""Bodies of jobs as data of tasks, and back. No I/O.

A body is bytes, and data is JSON. A body that is text in UTF-8 without NUL is stored as a JSON string, which SQL, the
command line and the dashboard show as it is. jsonb holds neither bytes nor NUL, so another body is stored as
`{"base64": "..."}`. In both cases a client gets back the bytes that were put.

Other data was put by a program that uses pgqueue directly, and its body is its JSON text.
"""

from __future__ import annotations

import base64
import json
from typing import Any

BYTES = "base64"


def data_of(body: bytes) -> Any:
    """The data of the task that carries a body."""
    if b"\0" not in body:
        try:
            return body.decode()
        except UnicodeDecodeError:
            pass
    return {BYTES: base64.b64encode(body).decode("ascii")}


def body_of(data: Any) -> bytes:
    """The body of a task with this data."""
    if isinstance(data, str):
        return data.encode()
    if isinstance(data, dict) and data.keys() == {BYTES}:
        try:
            return base64.b64decode(data[BYTES], validate=True)
        except (TypeError, ValueError):
            pass  # the object of another program, which uses the same key
    return json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode()
