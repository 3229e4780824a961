"""Ctrl-C leaves no lock of the engine held, wherever CPython handles it."""

from __future__ import annotations

import ast
import dis
import sys
from collections.abc import Iterator
from pathlib import Path
from types import CodeType

import pytest

import pgqueue._engine

SOURCES = sorted(Path(pgqueue._engine.__path__[0]).rglob("*.py"))
LOOP = """
def held(lock, items):
    with lock:
        for item in items:
            {}
"""


def sections(source: str) -> list[range]:
    """The lines of each `with self._lock`."""
    return [
        range(node.body[0].lineno, (node.end_lineno or 0) + 1)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.With)
        and any(ast.unparse(item.context_expr).rpartition(".")[2].endswith("lock") for item in node.items)
    ]


def codes(code: CodeType) -> Iterator[CodeType]:
    """A module's code, and all in it but generator expressions: what they raise comes out where they are called."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType) and constant.co_name != "<genexpr>":
            yield from codes(constant)


def unprotected(source: str) -> set[int]:
    """The lines in a section of a lock with a jump back that lies outside the section, for CPython."""
    found = set[int]()
    within = sections(source)
    for code in codes(compile(source, "source", "exec")):
        table = dis._parse_exception_table(code)  # type: ignore[attr-defined]  # what dis.dis() shows
        for one in dis.get_instructions(code):
            if one.opname == "JUMP_BACKWARD" and one.positions is not None and one.positions.lineno is not None:
                handled = [any(entry.start <= at < entry.end for entry in table) for at in (one.argval, one.offset)]
                if handled == [True, False] and any(one.positions.lineno in lines for lines in within):
                    found.add(one.positions.lineno)
    return found


@pytest.mark.skipif(sys.version_info < (3, 12), reason="before Python 3.12 each jump is in its `with`")
def test_the_rule_finds_the_jump_of_a_loop_that_ends_in_an_if() -> None:
    assert unprotected(LOOP.format("if item: item()")) == {5}
    assert unprotected(LOOP.format("item()")) == set()


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(pgqueue._engine.__path__[0])))
def test_each_jump_back_in_a_section_of_a_lock_is_handled_there(path: Path) -> None:
    """https://github.com/python/cpython/issues/130279: else Ctrl-C at the jump leaves the lock held."""
    assert unprotected(path.read_text()) == set()
