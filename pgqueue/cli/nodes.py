"""`pgqueue nodes`: the tree of small values."""

from __future__ import annotations

import itertools
from dataclasses import asdict
from typing import Any

import click

from .._calls.nodes import Node
from .asking import confirm
from .connecting import connect
from .grouping import Group
from .plainly import nothing, plainly
from .printing import cell, compact, document, echo, echo_all
from .values import COUNT, JSON, json_lines, timeout, yes

PATH = click.argument("path")
VERSION = click.option("--version", type=click.IntRange(min=0), help="Only if the node is still at this version.")


@click.group(cls=Group)
def nodes() -> None:
    """Read and change the tree of small values, and wait for its changes."""


@nodes.command()
@PATH
@json_lines
@click.pass_obj
@plainly
def get(dsn: str | None, path: str, as_json: bool) -> None:
    """Print the data of the node PATH as JSON."""
    with connect(dsn) as client:
        _echo(client.nodes.get(path), as_json)


@nodes.command()
@PATH
@click.pass_obj
@plainly
def exists(dsn: str | None, path: str) -> None:
    """Exit with code 0 if there is a node PATH, and with 3 if there is none."""
    with connect(dsn) as client:
        if not client.nodes.exists(path):
            nothing()


@nodes.command()
@PATH
@click.argument("data", type=JSON, default="null")
@click.option("--sequential", is_flag=True, help="Add a number to the path, which no other node of the parent gets.")
@json_lines
@click.pass_obj
@plainly
def create(dsn: str | None, path: str, data: Any, sequential: bool, as_json: bool) -> None:
    """Create the node PATH with DATA, which is JSON, and print its path. Its parent must exist."""
    with connect(dsn) as client:
        node = client.nodes.create(path, data, sequential=sequential)
    echo(asdict(node), cell(node.path), as_json)


@nodes.command("set")
@PATH
@click.argument("data", type=JSON)
@VERSION
@json_lines
@click.pass_obj
@plainly
def set_(dsn: str | None, path: str, data: Any, version: int | None, as_json: bool) -> None:
    """Set the data of the node PATH to DATA, which is JSON, and print its new version."""
    with connect(dsn) as client:
        node = client.nodes.set(path, data, version)
    echo(asdict(node), str(node.version), as_json)


@nodes.command()
@PATH
@VERSION
@yes
@click.pass_obj
@plainly
def delete(dsn: str | None, path: str, version: int | None, yes: bool) -> None:
    """Delete the node PATH, which must have no children."""
    with connect(dsn) as client:
        confirm(f"Delete the node {path}?", yes)
        client.nodes.delete(path, version)


@nodes.command("list")
@click.argument("path", default="/")
@json_lines
@click.pass_obj
@plainly
def list_(dsn: str | None, path: str, as_json: bool) -> None:
    """List the children of the node PATH, by name. Default: those of the root."""
    with connect(dsn) as client:
        names = client.nodes.children(path)
    echo_all(names, as_json, lambda name: {"name": name}, ("NAME",), lambda name: (name,))


@nodes.command()
@PATH
@click.option("--children", is_flag=True, help="Watch the list of its children instead of its data.")
@click.option("-n", "--count", type=COUNT, help="End after this number of events.")
@timeout
@json_lines
@click.pass_obj
@plainly
def watch(dsn: str | None, path: str, children: bool, count: int | None, timeout: float | None, as_json: bool) -> None:
    """Print each event of the node PATH from now on, with the state after it. Exit code 3 if there was none in time.

    The node need not exist yet. Events in quick succession may be printed as one; the last state is always printed.
    """
    with connect(dsn) as client:
        watch = client.nodes.watch(path, children=children)
        for _ in itertools.count() if count is None else range(count):
            try:
                event = watch.wait(timeout)
            except TimeoutError:
                nothing()
            watch = client.nodes.watch(path, children=children)  # before the line: the reader may act on it
            state = watch.children if children else watch.node and watch.node.data
            values = {"kind": event.kind, "path": event.path, "children" if children else "data": state}
            echo(values, f"{event.kind} {cell(event.path)} {compact(state)}", as_json)


def _echo(node: Node, as_json: bool) -> None:
    echo(asdict(node), document(node.data), as_json)
