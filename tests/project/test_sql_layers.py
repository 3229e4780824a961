"""The SQL in pgqueue/sql reads from top to bottom: each function and view refers only to what stands before it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import pgqueue
from pgqueue import sql as schema

# References to what stands later, each with the reason.
LATER = {
    ("_die", "_arrived"): "a recursion: a dead letter that arrives may be one too many, and what is trimmed dies",
    ("_move", "_put_together"): "the same recursion: the dead letter is put",
    ("_follow", "_follow_tasks"): "a hook: flows are built on the life of a task",
    ("_ready_state", "_waits_for_tasks"): "a hook, as _follow_tasks",
    ("_refuse", "grant"): "a hint in an error message",
    ("_named_session", "open_session"): "a hint in an error message",
}

STATEMENT = re.compile(r"\S(?:[^$;']|'[^']*'|(?P<quote>\$\w*\$)(?s:.*?)(?P=quote))*;")
DEFINITION = re.compile(
    r"CREATE (?:OR REPLACE )?(?:UNLOGGED )?(FUNCTION|VIEW|TABLE|SEQUENCE) (?:IF NOT EXISTS )?pgqueue\.(\w+)"
)
CALL = re.compile(r"\bpgqueue\.(\w+)\(")
RELATION = re.compile(r"\bpgqueue\.(\w+)\b(?!\()")
COMMENTED = re.compile(r"COMMENT ON (?:FUNCTION|VIEW) +pgqueue\.(\w+)")


class Statement(NamedTuple):
    """One statement of a file, without its comments."""

    place: int
    file: str
    kind: str
    name: str
    text: str


def statements() -> Iterator[Statement]:
    """Those of all files, in the order in which they are run."""
    place = 0
    for file in schema.FILES:
        code = re.sub(r"--[^\n]*", "", schema.read(file))
        for found in STATEMENT.finditer(code):
            definition = DEFINITION.match(found.group())
            kind, name = definition.groups() if definition else ("", "")
            yield Statement(place, file, kind, name, found.group())
            place += 1


STATEMENTS = list(statements())
# Of a name with several signatures, the first.
FUNCTIONS = {s.name: s for s in reversed(STATEMENTS) if s.kind == "FUNCTION"}
RELATIONS = {s.name: s for s in STATEMENTS if s.kind in ("TABLE", "VIEW", "SEQUENCE")}


def references(statement: Statement) -> Iterator[Statement]:
    """What a statement calls, reads or writes. A function that calls itself does not count."""
    for name in set(CALL.findall(statement.text)):
        if FUNCTIONS[name].name != statement.name:
            yield FUNCTIONS[name]
    for name in set(RELATION.findall(statement.text)) & RELATIONS.keys():
        if RELATIONS[name] is not statement:
            yield RELATIONS[name]


def test_every_statement_was_read() -> None:
    assert len(FUNCTIONS) > 200
    assert len(RELATIONS) > 40
    for file in schema.FILES:
        created = re.findall(r"^CREATE [A-Z ]*(?:FUNCTION|VIEW|TABLE|SEQUENCE) pgqueue\.(\w+)", schema.read(file), re.M)
        assert [s.name for s in STATEMENTS if s.file == file and s.name] == created, file


@pytest.mark.parametrize("file", schema.FILES)
def test_references_go_to_what_stands_before(file: str) -> None:
    later = [
        (statement.name, used.name, used.file)
        for statement in STATEMENTS
        if statement.file == file and not statement.text.startswith("COMMENT")
        for used in references(statement)
        if used.place > statement.place and (statement.name, used.name) not in LATER
    ]
    assert later == []


def test_each_exception_is_needed() -> None:
    for name, used in LATER:
        assert FUNCTIONS[used] in references(FUNCTIONS[name])
        assert FUNCTIONS[used].place > FUNCTIONS[name].place


def test_every_function_that_is_named_exists() -> None:
    """Also in strings, where PostgreSQL would find out when they are executed; helpers also without parentheses."""
    for statement in STATEMENTS:
        called = set(CALL.findall(statement.text))
        helpers = {name for name in RELATION.findall(statement.text) if name.startswith("_")}
        assert called | helpers <= FUNCTIONS.keys() | RELATIONS.keys(), (statement.file, statement.name)


def test_what_is_public_has_a_comment_and_a_helper_has_none() -> None:
    """A name without an underscore is an interface, and COMMENT ON is its reference."""
    commented = {name for s in STATEMENTS for name in COMMENTED.findall(s.text)}
    views = {name for name, s in RELATIONS.items() if s.kind == "VIEW"}
    assert commented == {name for name in FUNCTIONS.keys() | views if not name.startswith("_")}


def test_the_client_calls_no_helper() -> None:
    home = Path(pgqueue.__path__[0])
    calls = {
        (path.relative_to(home).as_posix(), name)
        for path in home.rglob("*.py")
        for name in re.findall(r"\bpgqueue\.(_[a-z]\w*)\(", path.read_text("utf-8"))
    }
    assert calls == set()


def test_advisory_locks_are_declared_in_one_file() -> None:
    """Elsewhere a lock's class is the call of the function that declares it."""
    declared = [int(n) for n in re.findall(r"^LANGUAGE sql .* RETURN (\d+);", schema.read("2_base/advisory.sql"), re.M)]
    assert declared == list(range(declared[0], declared[0] + len(declared)))
    for statement in STATEMENTS:
        keys = re.findall(r"\b(?:pg_\w*advisory_\w+|_await_lock|_begin_work)\(\s*([^,()]+)", statement.text)
        if statement.name in ("_await_lock", "_begin_work"):  # its caller names the class
            keys = [key for key in keys if key not in ("class", "class int")]
        classes = [key for key in keys if key != "hashtextextended"]  # a lock by name has one key
        assert [key for key in classes if not re.fullmatch(r"pgqueue\._\w+_lock", key)] == [], statement.name
        if statement.file != "2_base/advisory.sql":
            assert [number for number in declared if str(number) in statement.text] == [], statement.name


@pytest.mark.parametrize("file", schema.FILES)
def test_a_file_says_what_it_is_for_and_fits(file: str) -> None:
    lines = schema.read(file).splitlines()
    assert lines[0].startswith("-- ")
    assert [(number, len(line)) for number, line in enumerate(lines, 1) if len(line) > 120] == []
    assert len(lines) <= 350
