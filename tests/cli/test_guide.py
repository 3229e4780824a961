"""What docs/guides/cli.md says of commands, codes and keys is so. tests/docs/test_walks.py runs its blocks."""

from __future__ import annotations

import re
from collections.abc import Iterator

import click
import psycopg
import pytest
from checkout import CHECKOUT
from commands import Commands

from pgqueue import cli
from pgqueue.cli import plainly

pytestmark = pytest.mark.once

PAGE = (CHECKOUT / "docs" / "guides" / "cli.md").read_text("utf-8")
SETTINGS = (CHECKOUT / "docs" / "reference" / "settings.md").read_text("utf-8")


def leaves(command: click.Command = cli.main, *path: str) -> Iterator[tuple[str, click.Command]]:
    """The commands that are no groups, by their whole names."""
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            if (one := command.get_command(context, name)) is not None:
                yield from leaves(one, *path, name)
    else:
        yield " ".join(path), command


def having(option: str) -> set[str]:
    """The commands with this option."""
    return {name for name, one in leaves() if any(option in parameter.opts for parameter in one.params)}


def quoted(text: str) -> set[str]:
    return set(re.findall("`([^`]+)`", text))


def between(beginning: str, end: str) -> str:
    """The text of the page from the first of these to the next of those."""
    return PAGE[PAGE.index(beginning) :].partition(end)[0]


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


def test_the_commands_that_ask_first_are_those_of_the_page():
    assert quoted(between("Some commands ask first", ".\n")) - {"--yes"} == having("--yes")


def test_the_commands_with_json_are_those_of_the_page():
    rows = between("| of | keys |", "\n\n").splitlines()[2:]
    assert set[str]().union(*(quoted(row.split("|")[1]) for row in rows)) == having("--json")


#: How a command with a queue is called, where that is more than the queue.
CALLS = {
    "alter": "QUEUE ttr=1",
    "bind": "QUEUE exchange",
    "unbind": "QUEUE exchange",
    **dict.fromkeys(("cancel-all", "delete-all"), "QUEUE --state ready --yes"),
    **dict.fromkeys(("delete-queue", "put-again-all", "release-all", "truncate"), "QUEUE --yes"),
    **dict.fromkeys(("changes", "pop", "take"), "QUEUE --timeout 3"),  # shorter than a stall it may end before it waits
    "forward": "TASK QUEUE --claim CLAIM",
    **dict.fromkeys(("grant", "revoke"), "pg_monitor --queue QUEUE"),
    "limit set": "QUEUE --concurrency 1",
    "pause": "QUEUE 1",
    "put": "QUEUE 1",
    "rename-queue": "QUEUE another",
    "schedule set": "name QUEUE --every 60",
    **dict.fromkeys(("audit", "bindings", "limit list", "privileges"), "--queue QUEUE"),
}
#: With a queue; but they run until a signal, or need a module or a cluster.
OTHERS = {"alerts", "graphite", "metrics", "worker", "job put", "cluster grant"}


@pytest.mark.slow
def test_the_commands_that_make_their_queue_are_those_of_the_page(dsn: str, db: psycopg.Connection):
    command, made = Commands(dsn), set[str]()
    command.lines("create-exchange", "exchange")
    command.lines("put", "forwarding", "1")
    (taken,) = command.json("take", "forwarding")
    for name, one in leaves():
        if name not in OTHERS and any(parameter.type.name == "queue" for parameter in one.params):
            words = {"QUEUE": f"of {name}", "TASK": str(taken["id"]), "CLAIM": taken["claim"]}
            done = command(*name.split(), *(words.get(word, word) for word in CALLS.get(name, "QUEUE").split()))
            assert done.returncode in (0, plainly.FAILED, plainly.NOTHING), (name, done.stderr)
            if db.execute("SELECT 1 FROM pgqueue.queues WHERE name = %s", [f"of {name}"]).fetchone():
                made.add(name)
    said = {name.removesuffix(" --queue") for name in quoted(between("If a queue does not exist", "All other"))}
    assert said - OTHERS == made


def test_the_variables_are_those_of_the_settings():
    files = (CHECKOUT / "pgqueue").rglob("*.py")
    read = {name for file in files for name in re.findall(r"\bPGQUEUE_[A-Z_]+\b", file.read_text("utf-8"))}
    of_flask = {"PGQUEUE_POOL_SIZE", "PGQUEUE_SESSION_GRACE"}  # its settings, by its guide
    within = {"PGQUEUE_LINE"}  # between a supervisor and its workers
    named = set(re.findall(r"`(PGQUEUE_[A-Z_]+)`", SETTINGS))
    assert read - of_flask - within <= named
