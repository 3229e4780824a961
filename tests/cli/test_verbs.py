"""Each public verb is in the guide's table with a command that calls it, or in the table of exceptions."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from functools import cached_property

import click
import pytest
from checkout import CHECKOUT

import pgqueue
from pgqueue import cli

pytestmark = pytest.mark.once

PAGE = (CHECKOUT / "docs" / "guides" / "cli.md").read_text("utf-8")


def rows(heading: str) -> list[list[str]]:
    """The cells of the first table below a heading."""
    section = PAGE.split(f"\n## {heading}\n", 1)[1].split("\n## ", 1)[0]
    table = re.findall(r"^\| (.*) \|$", section, re.MULTILINE)
    return [line.split(" | ") for line in table[1:]]


def coded(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def verbs(cell: str) -> list[str]:
    """The verbs of a cell, with their owners: `client.limits.list`, `set` are two of `client.limits`."""
    found, owner = [], ""
    for name in coded(cell):
        prefix, _, verb = name.rpartition(".")
        if prefix and owner.startswith("client") and prefix in vars(CLIENT):
            prefix = f"client.{prefix}"  # `client.groups.join`, `exchanges.set_will`
        owner = prefix or owner
        found.append(f"{owner}.{verb}")
    return found


CLIENT = pgqueue.Client("dbname=nowhere")  # connects at its first call
QUEUE = CLIENT.queue("q")
FAMILIES = {
    f"client.{name}": type(value)
    for name, value in vars(CLIENT).items()
    if name != "shell" and type(value).__module__.startswith("pgqueue._sync.")
}
OWNERS = {
    "client": pgqueue.Client,
    "queue": pgqueue.Queue,
    "task": pgqueue.Task,
    "queue.messages": type(QUEUE.messages),
    **FAMILIES,
}
TABLE = {verb for row in rows("Commands") for verb in verbs(row[-1])}
EXCEPTIONS = {verb for row in rows("Verbs without a command") for verb in verbs(row[0])}


def public(owner: type) -> list[str]:
    members = inspect.getmembers(owner, lambda value: callable(value) or isinstance(value, property | cached_property))
    return [name for name, _ in members if not name.startswith("_")]


def of_tasks(verb: str) -> bool:
    """Whether the queue's verb of this name is the task's: its first argument is a task."""
    names = list(inspect.signature(getattr(pgqueue.Queue, verb)).parameters) if hasattr(pgqueue.Queue, verb) else []
    return names[1:2] in (["task"], ["tasks"])


def same(owner: str, verb: str) -> set[str]:
    """The names under which the page may have a verb."""
    if owner in ("queue", "task") and of_tasks(verb):
        return {f"queue.{verb}", f"task.{verb}", f"client.{verb}"}
    return {f"{owner}.{verb}"}


@pytest.mark.parametrize("owner", OWNERS)
def test_each_verb_has_a_command_or_a_reason(owner):
    missing = [name for name in public(OWNERS[owner]) if not same(owner, name) & (TABLE | EXCEPTIONS)]
    assert missing == []


def test_the_walk_sees_the_families():
    assert {"client.nodes", "client.statuses", "client.exchanges", "client.schedules"} <= FAMILIES.keys()
    assert {"put", "drain", "rename"} <= set(public(pgqueue.Queue))


def test_no_exception_has_a_command_or_is_unknown():
    assert set() == TABLE & EXCEPTIONS
    known = {f"{owner}.{name}" for owner, kind in OWNERS.items() for name in public(kind)}
    assert EXCEPTIONS - known == set()
    known |= {f"client.{name}" for name in vars(CLIENT)}  # `client.jobs` is no verb
    assert {verb for verb in TABLE if verb.rpartition(".")[0] in OWNERS} - known == set()


def called(module: str) -> set[str]:
    """The attributes that a module of the command line uses."""
    source = importlib.import_module(f"pgqueue.cli.{module}").__file__
    assert source is not None
    with open(source, encoding="utf-8") as file:
        return {node.attr for node in ast.walk(ast.parse(file.read())) if isinstance(node, ast.Attribute)}


LISTED = [row for row in rows("Commands") if set(verbs(row[-1])) and len(row) == 3 and "." in row[-1]]


@pytest.mark.parametrize("row", LISTED, ids=lambda row: coded(row[0])[0])
def test_the_commands_of_a_row_call_its_verbs(row):
    names = [name.split()[0] for name in coded(row[0])]
    if isinstance(cli.main.get_command(click.Context(cli.main), names[0]), click.Group):
        del names[1:]  # the others are its subcommands
    modules = {cli.COMMANDS[name] for name in names}
    for module in modules:
        assert {verb.rpartition(".")[2] for verb in verbs(row[-1])} & called(module), module


def test_each_command_of_a_group_is_in_the_row_of_its_group():
    context = click.Context(cli.main)
    for name in cli.COMMANDS:
        command = cli.main.get_command(context, name)
        if isinstance(command, click.Group) and name not in ("migrate", "server"):
            (row,) = [row for row in rows("Commands") if coded(row[0])[0].split()[0] == name]
            shown = {part for code in coded(row[0]) for part in code.split()}
            assert set(command.commands) <= shown, name
