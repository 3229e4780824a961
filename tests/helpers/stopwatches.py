"""Which tests measure seconds: those that use a stopwatch, also by another function, class or value of their file."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

STOPWATCHES = frozenset({"steady", "in_time", "soon_enough"})


def measures_seconds(item: pytest.Item) -> bool:
    name = item.nodeid.split("::")[1].partition("[")[0]
    return name in users(item.path)


@cache
def users(path: Path) -> frozenset[str]:
    """The names that a file defines with a stopwatch, itself or by another one of them."""
    text = path.read_text("utf-8")
    if not any(name in text for name in STOPWATCHES):
        return frozenset()
    uses = dict(defined(ast.parse(text)))
    found = set(STOPWATCHES)
    while more := {name for name, used in uses.items() if used & found} - found:
        found |= more
    return frozenset(found)


def defined(module: ast.Module) -> Iterator[tuple[str, set[str]]]:
    """What a module defines, each with the names in it. Those of fixtures are arguments, or texts in usefixtures()."""
    for node in module.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name, set(names(node))
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                if isinstance(target, ast.Name):
                    yield target.id, set(names(node))


def names(node: ast.AST) -> Iterator[str]:
    for one in ast.walk(node):
        if isinstance(one, ast.Name):
            yield one.id
        elif isinstance(one, ast.Attribute):
            yield one.attr
        elif isinstance(one, ast.arg):
            yield one.arg
        elif isinstance(one, ast.Constant) and isinstance(one.value, str):
            yield one.value
