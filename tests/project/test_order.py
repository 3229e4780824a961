"""A test that compares rows of a table or a view with a list says their order: PostgreSQL promises none without it.

The rows mostly come in the order in which they were written, so such a test fails once in hundreds of runs. Functions
of pgqueue's have an order of their own, which their tests are about.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
ROWS = re.compile(r"\bFROM pgqueue\.\w+(?![\w(])")


def unordered(source: str) -> Iterator[int]:
    """The lines with a comparison of rows, in no order that is told, with a list of several values."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Compare(left=left, ops=[ast.Eq()], comparators=[ast.List(elts=values)]):
                several = len({ast.dump(value) for value in values}) > 1
                if several and not _is_sorted(left) and any(map(_lacks_an_order, ast.walk(left))):
                    yield node.lineno


def _is_sorted(left: ast.expr) -> bool:
    return isinstance(left, ast.Call) and isinstance(left.func, ast.Name) and left.func.id == "sorted"


def _lacks_an_order(node: ast.AST) -> bool:
    match node:
        case ast.Constant(value=str(text)):
            return bool(ROWS.search(text)) and "ORDER BY" not in text and not text.startswith("SELECT count(*)")
    return False


@pytest.mark.slow
def test_rows_that_are_compared_with_a_list_are_ordered() -> None:
    found = [f"{path.name}:{line}" for path in TESTS.rglob("*.py") for line in unordered(path.read_text())]
    assert not found, "add ORDER BY, or compare with sorted(...)"


def test_the_rule_finds_one_and_leaves_what_has_an_order() -> None:
    query = "SELECT id FROM pgqueue.tasks"
    assert list(unordered(f"assert column(db, '{query}') == [1, 2]")) == [1]
    for fine in (
        f"assert column(db, '{query} ORDER BY id') == [1, 2]",
        f"assert sorted(column(db, '{query}')) == [1, 2]",
        f"assert column(db, '{query}') == [1]",
        f"assert column(db, '{query}') == [None, None]",
        "assert column(db, 'SELECT id FROM pgqueue.take_many(9)') == [1, 2]",
    ):
        assert list(unordered(fine)) == []
