"""Ctrl-C at any moment of each command: silence and exit code 130. The list of commands is generated."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import click
import pytest
from commands import invoke

import pgqueue
from pgqueue import cli
from pgqueue.cli import values

pytestmark = pytest.mark.once

HOME = str(Path(pgqueue.__path__[0]))
OURS = tuple(f"{HOME}/{folder}" for folder in ("cli", "terminal", "_values"))  # what runs before a call of the library


def leaves(group: click.Group, *path: str) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        found = group.get_command(context, name)
        assert found is not None
        if isinstance(found, click.Group):
            yield from leaves(found, *path, name)
        else:
            yield (*path, name), found


ALL = {" ".join(path): (path, found) for path, found in leaves(cli.main)}  # type: ignore[arg-type]

#: Options without which a command refuses its arguments, or goes another way than into a call.
MORE = {
    "limit set": ["--concurrency", "1"],
    "alter": ["ttr=1"],
    "schedule set": ["--every", "60"],
    "put": ["1"],
    "drain": ["q"],
}


def arguments(path: tuple[str, ...], command: click.Command) -> list[str]:
    """Arguments that the command accepts, as far as their types say."""
    given = []
    for one in command.params:
        if one.required or one.name == "yes":
            given += (
                [*one.opts[:1], *([] if one.name == "yes" else [value(one)])]
                if isinstance(one, click.Option)
                else [value(one)]
            )
    return [*path, *given, *MORE.get(" ".join(path), [])]


def value(one: click.Parameter) -> str:
    if isinstance(one.type, click.Choice):
        return str(one.type.choices[0])
    if one.type in (values.QUEUE, values.CHANNEL) or one.name == "role":
        return "q"
    if one.name == "command":
        return "true"
    return "app:client" if one.name == "app" else "localhost" if one.name == "server" else "1"


class Interrupt:
    """Raises KeyboardInterrupt at the first call of a function that `moment` is true for."""

    def __init__(self, moment: Any) -> None:
        self._moment = moment
        self.came = False

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        if event == "call" and self._moment(frame.f_code.co_filename, frame.f_code.co_name):
            sys.setprofile(None)
            self.came = True
            raise KeyboardInterrupt


def interrupted(line: list[str], moment: Any) -> tuple[Interrupt, Any]:
    interrupt = Interrupt(moment)
    sys.setprofile(interrupt)
    try:
        return interrupt, invoke(*line)
    finally:
        sys.setprofile(None)


@pytest.mark.parametrize("name", ALL)
def test_ctrl_c_while_the_arguments_are_read(name: str) -> None:
    path, command = ALL[name]
    moment, done = interrupted(arguments(path, command), lambda file, function: function == "make_parser")
    assert moment.came
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


@pytest.mark.parametrize("name", ALL)
def test_ctrl_c_as_the_command_begins(name: str) -> None:
    path, command = ALL[name]
    moment, done = interrupted(
        arguments(path, command), lambda file, function: file.endswith("plainly.py") and function == "wrapper"
    )
    assert moment.came, done.stderr
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


@pytest.mark.parametrize("name", ALL)
def test_ctrl_c_in_a_call(name: str) -> None:
    """At the first call of the library, before anything is done."""
    path, command = ALL[name]
    inside = False

    def moment(file: str, function: str) -> bool:
        nonlocal inside
        inside = inside or (file.endswith("plainly.py") and function == "wrapper")
        return inside and file.startswith(HOME) and not file.startswith(OURS)

    interrupt, done = interrupted(arguments(path, command), moment)
    if name not in ("completion", "job list", "job put", "worker"):  # they have none before they look for the module
        assert interrupt.came, done.stderr
    if interrupt.came:
        assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


WHILE_IMPORTED = """
import subprocess
import sys
class Interrupting:
    def find_spec(self, name, path, target=None):
        if name == "click":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupting())
from importlib.metadata import entry_points
(command,) = entry_points(group="console_scripts", name="pgqueue")
command.load()()
"""


def test_ctrl_c_while_the_command_is_imported() -> None:
    done = subprocess.run([sys.executable, "-c", WHILE_IMPORTED], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")
