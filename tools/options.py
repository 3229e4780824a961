"""Writes the table of a queue's options into docs/reference/settings.md: `python tools/options.py`.

QueueOptions has them. tests/values/test_queue_options.py compares the page.
"""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any, get_type_hints

from pgqueue._calls.queue import FIXED, MEANINGS, QueueInfo, QueueOptions

PAGE = Path(__file__).resolve().parents[1] / "docs" / "reference" / "settings.md"
HEAD = "| option | default | can be altered | meaning |\n|---|---|---|---|\n"


def table() -> str:
    """The rows, in the order of the fields."""
    types = get_type_hints(QueueInfo)
    return "".join(
        f"| `{one.name}` | {default(one.default, types[one.name])} | {'no' if one.name in FIXED else 'yes'} |"
        f" {MEANINGS[one.name]} |\n"
        for one in fields(QueueOptions)
    )


def default(value: Any, type: object) -> str:
    """As the page shows it. An option that a queue always has is 0 if it is not given."""
    return "0" if type in (int, float) else str(value).lower() if value is False else str(value)


def page() -> str:
    """The text of the page, with the table as it has to be."""
    before, head, after = PAGE.read_text("utf-8").partition(HEAD)
    return before + head + table() + after[after.index("\n\n") + 1 :]


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
