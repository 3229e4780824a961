"""What docs/guides/cli.md says of commands, codes and keys is so. tests/docs/test_walks.py runs its blocks."""

from __future__ import annotations

import re

import pytest
from checkout import CHECKOUT
from commands import Commands

from pgqueue import cli
from pgqueue.cli import plainly

pytestmark = pytest.mark.once

PAGE = (CHECKOUT / "docs" / "guides" / "cli.md").read_text("utf-8")


def test_every_command_is_on_the_page():
    named = set(re.findall(r"[a-z-]+", " ".join(re.findall(r"`([^`\n]+)`", PAGE))))
    assert cli.COMMANDS.keys() <= named


def test_the_exit_codes_are_those_of_the_page():
    codes = {int(code) for code in re.findall(r"^\| (\d+) \|", PAGE, re.MULTILINE)}
    known = {plainly.FAILED, plainly.WRONG, plainly.NOTHING, plainly.GONE, plainly.INTERRUPTED}
    assert codes == {0, 143, *known}


def test_the_keys_are_those_of_the_page(dsn):
    command = Commands(dsn)

    def keys(beginning: str) -> set[str]:
        line = re.findall(rf"^\| {re.escape(beginning)}.*?\| (.*) \|$", PAGE, re.MULTILINE)[-1]  # of the last table
        return set(re.findall(r"`([a-z_]+)`", line))

    assert set(command.json("put", "q", "1")[0]) == keys("one that was put")
    (taken,) = command.json("take", "q")
    assert set(taken) == keys("a task")
    assert set(command.json("ack", "1", "--claim", taken["claim"])[0]) == keys("`ack`") - {"deleted"}
    assert set(command.json("stats")[0]) == keys("`stats`") - {"per_second"}
    assert set(command.json("health")[0]) == keys("`health`")
