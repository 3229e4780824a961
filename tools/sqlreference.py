"""Writes docs/reference/sql.md from the catalogue of a new database: `python tools/sqlreference.py [DSN]`.

The page has every public function and view of the schema pgqueue, that is, each one with a name that does not begin
with an underscore. The description of a function is its COMMENT. The SQLSTATEs that it may raise are read from its body
and from the functions that the body calls. docs/reference/examples.sql has the order of the page and the examples.
tests/docs/test_sql_reference.py compares the page.
"""

from __future__ import annotations

import os
import re
import sys
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
from psycopg.conninfo import make_conninfo
from psycopg.rows import namedtuple_row

DOCS = Path(__file__).resolve().parents[1] / "docs"
PAGE = DOCS / "reference" / "sql.md"
EXAMPLES = DOCS / "reference" / "examples.sql"

#: Called only for a put with `after` or `batch`; other puts share the functions that call these.
FLOWS = frozenset({"_put_in_flow", "_enter_flow"})

HEAD = """\
<!-- Written by tools/sqlreference.py from the catalogue and examples.sql: change those, and run it again. -->

# SQL

Every public function and view of the schema `pgqueue`. Tables, and names that begin with an underscore, are internal.
Call functions with named arguments (`delay => '5 min'`): new arguments are added at the end, with a default. A duration
is an `interval`, a point in time a `timestamptz`. [A table](errors.md#sqlstates) explains the SQLSTATEs that functions
may raise. The tests run every example.
"""

FUNCTIONS = """
    SELECT p.oid::int, p.proname AS name, obj_description(p.oid, 'pg_proc') AS comment,
           coalesce(nullif(p.prosrc, ''), pg_get_function_sqlbody(p.oid)) AS body,
           p.proretset AS set, format_type(p.prorettype, NULL) AS result,
           coalesce(p.proargnames, '{}') AS names,
           coalesce(p.proargmodes::text[], array_fill('i'::text, ARRAY[p.pronargs])) AS modes,
           ARRAY(SELECT format_type(t, NULL) FROM unnest(coalesce(p.proallargtypes, p.proargtypes)) t) AS types,
           ARRAY(SELECT pg_get_function_arg_default(p.oid, n)
                   FROM generate_series(1, cardinality(coalesce(p.proallargtypes, p.proargtypes::oid[]))) n) AS defaults
      FROM pg_proc p
     WHERE p.pronamespace = 'pgqueue'::regnamespace AND p.prorettype <> 'trigger'::regtype
     ORDER BY p.proname, pg_get_function_identity_arguments(p.oid)"""

VIEWS = """
    SELECT c.relname AS name, obj_description(c.oid, 'pg_class') AS comment,
           ARRAY(SELECT a.attname::text FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 ORDER BY a.attnum)
               AS names,
           ARRAY(SELECT format_type(a.atttypid, a.atttypmod) FROM pg_attribute a
                  WHERE a.attrelid = c.oid AND a.attnum > 0 ORDER BY a.attnum) AS types
      FROM pg_class c
     WHERE c.relnamespace = 'pgqueue'::regnamespace AND c.relkind = 'v'
     ORDER BY c.relname"""


@dataclass
class Section:
    """A part of the page: its title, its introduction, and the examples by name."""

    title: str
    text: str = ""
    examples: dict[str, str] = field(default_factory=dict)


class Missing(Exception):
    """A public function or view lacks a COMMENT or an example, or an example is for nothing."""


def sections() -> list[Section]:
    """The sections of examples.sql, in their order."""
    found: list[Section] = []
    name = None
    for line in EXAMPLES.read_text("utf-8").splitlines():
        if line.startswith("-- section: "):
            found.append(Section(line.removeprefix("-- section: ")))
            name = None
        elif line.startswith("-- name: "):
            name = line.removeprefix("-- name: ")
            found[-1].examples[name] = ""
        elif name is not None:
            found[-1].examples[name] += line + "\n"
        elif found and line.startswith("-- "):
            found[-1].text += line.removeprefix("-- ") + "\n"
    return found


class Catalogue:
    """The catalogue's rows about the schema."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        with connection.cursor(row_factory=namedtuple_row) as cursor:
            self._functions = cursor.execute(FUNCTIONS).fetchall()
            views = cursor.execute(VIEWS).fetchall()
        self.functions: dict[str, list[Any]] = {}
        for function in filter(self._public, self._functions):
            self.functions.setdefault(function.name, []).append(function)
        self.views = {view.name: view for view in views if self._public(view)}
        self._bodies: dict[str, str] = {}
        for function in self._functions:
            self._bodies[function.name] = self._bodies.get(function.name, "") + function.body

    @staticmethod
    def _public(row: Any) -> bool:
        return not row.name.startswith("_")

    def states(self, name: str) -> list[str]:
        """The SQLSTATEs that a function may raise, itself or by a function that it calls."""
        reached = self._reached(name, FLOWS)
        if "_put_all" in reached or any("batch =>" in self._bodies[each] for each in reached):
            reached = self._reached(name, frozenset())
        code = "".join(map(self._code, reached))
        return sorted(set(re.findall(r"(?:ERRCODE =|code =>) '(PQ\d+)'", code)))

    def _reached(self, name: str, excluded: frozenset[str]) -> set[str]:
        """The functions that a function calls, directly or not, and itself."""
        reached: set[str] = set()
        coming = [name]
        while coming:
            if (current := coming.pop()) not in reached and current in self._bodies.keys() - excluded:
                reached.add(current)
                code = re.sub(r"'(?:[^']|'')*'", "''", self._code(current))  # a hint may name a function
                coming += re.findall(r"(?<!INTO )\bpgqueue\.(\w+)\s*\(", code)
        return reached

    def _code(self, name: str) -> str:
        """The bodies of the functions of a name, without their comments."""
        return re.sub(r"--.*", "", self._bodies[name])


def _type(name: str) -> str:
    return name.replace("timestamp with time zone", "timestamptz")


def _default(value: str, of_type: str) -> str:
    return "NULL" if value.startswith("NULL::") else value.removesuffix(f"::{of_type}")


def _signature(function: Any) -> Iterator[str]:
    given = list(zip(function.names, function.modes, function.types, function.defaults, strict=True))
    arguments = [
        f"{name} {_type(kind)}" + (f" DEFAULT {_default(default, kind)}" if default is not None else "")
        for name, mode, kind, default in given
        if mode in "ib"
    ]
    columns = [f"{name} {_type(kind)}" for name, mode, kind, _ in given if mode in "obt"]
    one_line = f"pgqueue.{function.name}({', '.join(arguments)})"
    if len(one_line) <= 100:
        yield one_line
    else:
        yield f"pgqueue.{function.name}("
        yield from (f"    {argument}," for argument in arguments[:-1])
        yield f"    {arguments[-1]}"
        yield ")"
    many = "SETOF " if function.set else ""
    if columns:
        yield from _wrapped(f"    -> {many}({', '.join(columns)})")
    else:
        yield f"    -> {many}{_type(function.result)}"


def _wrapped(line: str) -> Iterator[str]:
    """Break a long list of columns at its commas."""
    while len(line) > 110:
        head, _, tail = line[:110].rpartition(", ")
        yield head + ","
        line = "        " + tail + line[110:]
    yield line


def _fence(text: str | Iterable[str]) -> list[str]:
    lines = text.strip("\n").splitlines() if isinstance(text, str) else list(text)
    return ["```postgresql", *lines, "```", ""]


def _function(catalogue: Catalogue, name: str, example: str) -> Iterator[str]:
    versions = catalogue.functions[name]
    yield from _fence(line for version in versions for line in _signature(version))
    for comment in dict.fromkeys(version.comment for version in versions):
        yield from _text(comment)
    if states := catalogue.states(name):
        yield from _paragraph("May raise " + ", ".join(f"`{state}`" for state in states) + ".")
    yield from _fence(example)


def _view(view: Any, example: str) -> Iterator[str]:
    yield from _text(view.comment)
    columns = (f"`{name}` {_type(kind)}" for name, kind in zip(view.names, view.types, strict=True))
    yield from _paragraph("Columns: " + ", ".join(columns))
    yield from _fence(example)


def _text(comment: str) -> list[str]:
    """A COMMENT, which is plain text, as Markdown."""
    return _paragraph(re.sub(r"([*_<>\[\]{}|])", r"\\\1", comment))


def _paragraph(text: str) -> list[str]:
    return [*textwrap.wrap(text, 118, break_on_hyphens=False), ""]


def faults(catalogue: Catalogue, parts: list[Section]) -> list[str]:
    """The reasons why the page would be incomplete."""
    examples = [name for part in parts for name in part.examples]
    public = {**{name: rows[0] for name, rows in catalogue.functions.items()}, **catalogue.views}
    found = [f"{name} has no COMMENT" for name, row in public.items() if not row.comment]
    found += [f"{name} has no example in {EXAMPLES.name}" for name in public if name not in examples]
    found += [f"{EXAMPLES.name} has {name}, which is not public" for name in examples if name not in public]
    found += [f"{EXAMPLES.name} has two examples for {name}" for name in {n for n in examples if examples.count(n) > 1}]
    return sorted(found)


def page(connection: psycopg.Connection[Any]) -> str:
    """The text of the page. Raises Missing."""
    catalogue, parts = Catalogue(connection), sections()
    if wrong := faults(catalogue, parts):
        raise Missing("\n".join(wrong))
    lines = [HEAD]
    for part in parts:
        lines += [f"## {part.title}", ""]
        lines += [part.text] if part.text else []
        for name, example in part.examples.items():
            lines += [f"### {name}", ""]
            is_view = name in catalogue.views
            lines += _view(catalogue.views[name], example) if is_view else _function(catalogue, name, example)
    return "\n".join(lines).rstrip("\n") + "\n"


def main(dsn: str | None = None) -> None:
    """Write the page from a new database, dropped afterwards, on the embedded server or on the server of a DSN."""
    from pgqueue import embedded, migrate

    name = f"pgqueue_reference_{os.getpid()}"
    with psycopg.connect(dsn or embedded.default_server().dsn(), autocommit=True) as admin:
        admin.execute(f"CREATE DATABASE {name}")
        try:
            fresh = make_conninfo(admin.info.dsn, dbname=name, password=admin.info.password)
            migrate.up(fresh)
            with psycopg.connect(fresh) as connection:
                PAGE.write_text(page(connection), "utf-8")
        finally:
            admin.execute(f"DROP DATABASE {name} WITH (FORCE)")


if __name__ == "__main__":
    main(*sys.argv[1:])
