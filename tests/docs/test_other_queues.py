"""The guides for users of other queues: each code in their tables stands in a block that a test runs."""

from __future__ import annotations

import re

import pytest
from captions import blocks
from pages import DOCS

HEAD = re.compile(r"^\| concept \| [\w ]+ \| pgqueue \| what differs \|\n", re.MULTILINE)
NAME = re.compile(r"-*[\w.-]+=?|\w+\(\w+=\)")  # a bare name or option is a word of the text


@pytest.mark.once
@pytest.mark.parametrize("name", ["from-celery", "from-rq", "from-procrastinate"])
def test_every_code_of_the_table_is_run_on_the_page(name: str) -> None:
    page = DOCS / "guides" / f"{name}.md"
    _, _, rest = page.read_text("utf-8").partition("\n## Every concept\n")
    table = HEAD.split(rest)[1].partition("\n\n")[0].splitlines()[1:]
    run = "\n".join(block.text for block in blocks(page) if not block.output)
    codes = [code for row in table for cell in row.split(" | ")[1:3] for code in re.findall(r"`([^`]+)`", cell)]
    assert len(table) > 20
    assert [code for code in codes if not NAME.fullmatch(code) and code not in run] == []
