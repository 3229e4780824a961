"""What a stranger can plant in a schema in which PUBLIC may create: objects that fit a careless call better than ours.

For every function and operator of the server that our SQL names, overloads with the same and with closer types of
arguments; types with the names of the server's types; tables with the names of the server's and our own. Each of them
counts in a sequence, which no rollback undoes, and then raises.
"""

from __future__ import annotations

import re
from itertools import product
from pathlib import Path

import psycopg

from pgqueue import migrate
from pgqueue import sql as schema

TRAP = "captured by a planted object"
FAMILIES = [
    ("text", "name", "varchar", '"char"', "bpchar"),
    ("int4", "int2", "int8", "oid", "regclass", "regrole", "regproc", "numeric", "float8"),
    ("timestamptz", "timestamp", "interval", "date"),
    ("jsonb", "json"),
    ("text[]", "name[]", "varchar[]", '"char"[]', "int4[]", "int8[]", "oid[]", "bool[]"),
    ("bool",),
    ("uuid",),
    ("xid8", "xid"),
]
TYPES = [type for family in FAMILIES for type in family]
OPERANDS = ["text", "name", '"char"', "int4", "int8", "oid", "regclass", "regrole", "timestamptz", "interval", "jsonb"]
OPERANDS += ["bool", "float8", "numeric", "uuid", "text[]", "int4[]", "int8[]", "xid8", "varchar"]
OPERATORS = ["=", "<>", "<", ">", "<=", ">=", "||", "+", "-", "*", "/", "%", "&", "->", "->>", "@>", "&&", "~", "!~"]
OPERATORS += ["~~", "!~~", "<<", ">>"]
SHADOWED = ["text", "int8", "bool", "float8", "jsonb", "uuid", "timestamptz", "name", "oid", "regclass", "regrole"]
SHADOWED += ["xid8", "regprocedure"]
#: Tables of the server that our SQL reads, and names of our own.
TABLES = ["pg_class", "pg_namespace", "pg_proc", "pg_roles", "pg_depend", "pg_trigger", "pg_type", "pg_locks"]
TABLES += ["pg_stat_activity", "pg_database", "task", "take", "queue", "session", "tasks", "delta", "schema_version"]


def plant(stranger: psycopg.Connection) -> None:
    """Plant everything in the schema public."""
    stranger.execute("CREATE SEQUENCE public.captured")
    stranger.execute("GRANT ALL ON SEQUENCE public.captured TO PUBLIC")
    statements = [_function("trap", ())]
    for name, signatures in _builtins(stranger).items():
        statements += [_function(name, types) for types in sorted(signatures)]
    for left, right in product(OPERANDS, OPERANDS):
        statements.append(_function("planted_operator", (left, right)))
        statements += [
            f"CREATE OPERATOR public.{operator} (LEFTARG = {_type(left)}, RIGHTARG = {_type(right)},"
            " FUNCTION = public.planted_operator)"
            for operator in OPERATORS
        ]
    for table in TABLES:
        statements.append(f"CREATE VIEW public.{table} AS SELECT public.trap() AS trap")
        statements.append(f"GRANT SELECT ON public.{table} TO PUBLIC")
    statements += [
        f"CREATE DOMAIN public.{name} AS pg_catalog.{name} CHECK (public.trap() IS NOT NULL)" for name in SHADOWED
    ]
    stranger.execute("SET check_function_bodies = off")
    with stranger.transaction():
        for start in range(0, len(statements), 500):
            stranger.execute("; ".join(statements[start : start + 500]).encode())


def plant_temporary(conn: psycopg.Connection) -> None:
    """Plant tables in the schema pg_temp of this connection."""
    for table in TABLES:
        conn.execute(f"CREATE TEMPORARY TABLE {table} (trap pg_catalog.int4)".encode())


def captured(conn: psycopg.Connection) -> bool:
    """Whether a planted object was used, by anyone."""
    (called,) = conn.execute("SELECT is_called FROM public.captured").fetchone() or (None,)
    return bool(called)


def _function(name: str, types: tuple[str, ...]) -> str:
    arguments = ", ".join(map(_type, types))
    what = f"{name}({arguments})".replace("'", "")
    return (
        f'CREATE FUNCTION public."{name}"({arguments}) RETURNS pg_catalog.bool LANGUAGE plpgsql IMMUTABLE AS $trap$'
        f" BEGIN PERFORM pg_catalog.nextval('public.captured'); RAISE EXCEPTION '{TRAP}: {what}'; END $trap$"
    )


def _type(name: str) -> str:
    return f"pg_catalog.{name}"


def _builtins(conn: psycopg.Connection) -> dict[str, set[tuple[str, ...]]]:
    """The server's functions that our SQL names, and the types of arguments to plant them with."""
    home = Path(migrate.__file__).parent
    texts = [schema.read(name) for name in schema.FILES]
    texts += [path.read_text("utf-8") for path in home.rglob("*.py")]
    texts += [path.read_text("utf-8") for path in (home.parent / "migrations").rglob("*.*") if path.suffix != ".pyc"]
    words = {word for text in texts for word in re.findall(r"(?<![\w])([a-z_0-9]+) ?\(", text)}
    found: dict[str, set[tuple[str, ...]]] = {}
    query = (
        "SELECT proname, ARRAY (SELECT t::regtype::text FROM unnest(proargtypes) t) FROM pg_proc"
        " WHERE pronamespace = 'pg_catalog'::regnamespace AND prokind IN ('f', 'a', 'w') AND proname = ANY (%s)"
    )
    for name, given in conn.execute(query, [sorted(words)]).fetchall():
        types = [_LONG.get(type, type) for type in given]
        found.setdefault(name, set()).update(_closer(types))
    return found


_LONG = {
    "bigint": "int8", "integer": "int4", "smallint": "int2", "boolean": "bool", "double precision": "float8",
    "character varying": "varchar", "character": "bpchar", "timestamp with time zone": "timestamptz",
    "timestamp without time zone": "timestamp", "bigint[]": "int8[]", "integer[]": "int4[]",
}  # fmt: skip


def _closer(types: list[str]) -> set[tuple[str, ...]]:
    """The same types, and others that a call could have instead."""
    choices = [next((family for family in FAMILIES if type in family), (type,)) for type in types]
    choices = [
        tuple(TYPES) if type.startswith("any") or type == '"any"' else kept
        for type, kept in zip(types, choices, strict=True)
    ]
    polymorphic = any(type.startswith(("any", '"any')) for type in types)
    plain = [(type,) for type in types]
    if len(types) <= 2:
        every = set(product(*choices))
    else:
        every = {kind for at in range(len(types)) for kind in product(*plain[:at], choices[at], *plain[at + 1 :])}
    if polymorphic and types[-1] == '"any"':  # VARIADIC, as format() and concat_ws(): one, two and three arguments
        first = [types[:1]] if len(types) > 1 else []
        every = {(*map("".join, first), *rest) for n in (1, 2) for rest in product(OPERANDS, repeat=n)}
    return {kind for kind in every if all(type in TYPES for type in kind)}
