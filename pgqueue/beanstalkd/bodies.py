"""Bodies of jobs as data of tasks, and back. No I/O.

A body is bytes. A body that is text in UTF-8 without NUL is stored as a JSON string, which SQL, the command line and
the dashboard show as it is, and any other one as bytes (_values/marked.py). In both cases a client gets back the bytes
that were put.

Other data was put by a program that uses pgqueue directly, and its body is its JSON text.
"""

from __future__ import annotations

import json
from typing import Any

from .._values.marked import bytes_of, text_of, written

data_of = text_of


def body_of(data: Any) -> bytes:
    """The body of a task with this data."""
    if isinstance(data, str | bytes):
        return bytes_of(data)
    return json.dumps(data, ensure_ascii=False, separators=(",", ":"), default=written).encode("utf-8", "surrogatepass")
