"""The options of a queue are declared once, in QueueOptions: what has to repeat them names the same ones."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from typing import get_type_hints

import options

from pgqueue import Client
from pgqueue._calls import casts
from pgqueue._calls.queue import MEANINGS, AlterArguments, QueueArguments, QueueInfo, QueueOptions
from pgqueue.dashboard.acting import ALTERABLE

OPTIONS = {field.name for field in fields(QueueOptions)}
DOCS = Path(__file__).parents[2] / "docs"


def test_the_types_of_keyword_arguments_and_the_record_name_the_options() -> None:
    assert get_type_hints(QueueArguments).keys() == OPTIONS
    assert {field.name for field in fields(QueueInfo)} >= OPTIONS


def test_each_option_has_an_sql_type() -> None:
    assert all(casts.cast("create_queue", name) for name in OPTIONS)


def test_each_option_is_explained() -> None:
    explained = set(re.findall(r"^ +(\w+): ", Client.create_queue.__doc__ or "", re.MULTILINE))
    assert OPTIONS - explained == set()
    assert named("guides/queues.md", "Options of a queue") == OPTIONS
    assert all(MEANINGS.values())


def test_the_page_of_settings_is_up_to_date() -> None:
    """Run tools/options.py after a change of an option."""
    assert options.PAGE.read_text("utf-8") == options.page()
    assert named("reference/settings.md", "Queue") == OPTIONS


def named(page: str, heading: str) -> set[str]:
    """The options in the first column of the table under a heading."""
    section = (DOCS / page).read_text("utf-8").split(f"\n## {heading}\n")[1].split("\n## ")[0]
    first = re.findall(r"^\|([^|]*)\|", section, re.MULTILINE)
    return {name for cell in first for name in re.findall(r"`(\w+)`", cell)}


def test_a_page_alters_each_number_and_duration_that_may_change() -> None:
    types = get_type_hints(AlterArguments)
    assert ALTERABLE.keys() == {name for name, type in types.items() if re.search(r"\bint\b|float", str(type))}
