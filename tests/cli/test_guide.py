"""What docs/guides/cli.md shows is run by a shell, and what it says of commands, codes and keys is so."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest
from checkout import CHECKOUT
from commands import Commands, environment

from pgqueue import cli
from pgqueue.cli import plainly

pytestmark = pytest.mark.once

PAGE = (CHECKOUT / "docs" / "guides" / "cli.md").read_text("utf-8")
BLOCKS = re.findall(r"^```sh\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


@pytest.mark.slow
@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.splitlines()[0][:40])
def test_shell_blocks_run(block, dsn, tmp_path):
    """Every command of it succeeds, with the `pgqueue` of this interpreter."""
    program = tmp_path / "pgqueue"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m pgqueue "$@"\n')
    program.chmod(0o755)
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", block],
        env=environment(PGQUEUE_DSN=dsn, PATH=f"{tmp_path}:{os.environ['PATH']}"),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")


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
