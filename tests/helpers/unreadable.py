"""JSON that PostgreSQL holds and this Python cannot read."""

from __future__ import annotations

import json

DIGITS = "9" * 5000
DEPTH = 14_000  # PostgreSQL reads that. Python 3.11 reads a tenth of it, Python 3.13 two thirds


def python_reads(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


UNREADABLE = [text for text in (DIGITS, "[" * DEPTH + "]" * DEPTH) if not python_reads(text)]
