"""The options of a queue are declared once, in QueueOptions: what has to repeat them names the same ones."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from typing import get_type_hints

from pgqueue import Client
from pgqueue._calls import casts
from pgqueue._calls.queue import AlterArguments, QueueArguments, QueueInfo, QueueOptions
from pgqueue.dashboard.acting import ALTERABLE
from pgqueue.monitors import words

OPTIONS = {field.name for field in fields(QueueOptions)}
SETTINGS = Path(__file__).parents[2] / "docs/reference/settings.md"


def test_the_types_of_keyword_arguments_and_the_record_name_the_options() -> None:
    assert get_type_hints(QueueArguments).keys() == OPTIONS
    assert {field.name for field in fields(QueueInfo)} >= OPTIONS


def test_each_option_has_an_sql_type() -> None:
    assert all(casts.cast("create_queue", name) for name in OPTIONS)


def test_each_option_is_explained() -> None:
    explained = set(re.findall(r"^ +(\w+): ", Client.create_queue.__doc__ or "", re.MULTILINE))
    table = SETTINGS.read_text("utf-8").split("\n## Queue\n")[1].split("\n## ")[0]
    assert OPTIONS - explained == set()
    assert set(re.findall(r"^\| `(\w+)`", table, re.MULTILINE)) == OPTIONS
    assert words.OPTIONS.keys() == OPTIONS


def test_a_page_alters_each_number_and_duration_that_may_change() -> None:
    types = get_type_hints(AlterArguments)
    assert ALTERABLE.keys() == {name for name, type in types.items() if re.search(r"\bint\b|float", str(type))}
