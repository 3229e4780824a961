"""Calls of every function and view that a role may reach, made from the catalogue: no table names them.

So a function that was added yesterday is called too. Arguments are chosen by their name and type, and aim at a victim
of rights_victim.py: each id of its tasks, its queues, its session, its batch and what else has a name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product

import psycopg

#: Of arguments by their names, where one name has two types with the type; with {names} of the victim. An argument
#: that is not here has a value by its type.
BY_NAME: dict[str, tuple[str, ...]] = {
    "queue": ("'secret'", "'secret.own'", "'other'"),
    "source": ("'plugh'",),
    "queues": ("'{{secret}}'",),
    "queue_id": ("{q}",),
    "queue_ids": ("'{{{q}}}'",),
    "state": ("'ready'", "'taken'", "'delayed'", "'buried'", "'done'", "'waiting'", "'blocked'"),
    "verb": ("'kick'", "'delete'", "'bury'"),
    "what": ("'queues'",),
    "session": ("{me}",),
    "resume": ("{me}",),
    "claim": ("{claim}",),
    "batch": ("{batch}",),
    "key": ("'the key'", "'victim status'"),
    "key integer": ("1",),
    "keys": ("'{{the key}}'",),
    "lane": ("'a lane'",),
    "name": ("'secret'", "'charge'", "'victim'", "'victim lock'", "'news'"),
    "new_name": ("'taken over'",),
    "path": ("'/victim'", "'/'"),
    "exchange": ("''", "'news'"),
    "channel": ("'victim channel'",),
    "job": ("'send'",),
    "identity": ("{identity}",),
    "if_exists": ("'replace'", "'ignore'", "'error'"),
    "puts": ('\'[{{"queue": "other", "data": 1, "after": [{done}]}}]\'',),
    "items": ("'[]'",),
    "runs": ("'[]'",),
    "data": ("'[1]'",),
    "tasks": ("""ARRAY ['{{"data":1, "state":"R", "priority":0, "attempts":0, "created_at":"now"}}'::jsonb]""",),
    "options": ("'{{}}'",),
    "type": ("'fifo'",),
    "role": ("current_user::regrole",),
    "tz": ("'UTC'",),
    "argument": ("'k'",),
    "number": ("1",),
    "dead_letter": ("''",),
    "dead_letter_key": ("'other'",),
}

BY_TYPE: dict[str, str] = {
    "bigint": "1",
    "integer": "1",
    "boolean": "true",
    "double precision": "1",
    "text": "'x'",
    "interval": "'1 h'",
    "timestamp with time zone": "now()",
    "jsonb": "'1'",
    "uuid": "gen_random_uuid()",
    "regrole": "current_user::regrole",
}

_FUNCTIONS = """
    SELECT p.oid::regproc::text, p.pronargs - p.pronargdefaults,
           ARRAY (SELECT coalesce(p.proargnames [u.i], '') FROM unnest(p.proargtypes) WITH ORDINALITY u(t, i)
                   ORDER BY u.i),
           ARRAY (SELECT format_type(u.t, NULL) FROM unnest(p.proargtypes) WITH ORDINALITY u(t, i) ORDER BY u.i)
      FROM pg_proc p
     WHERE p.pronamespace = 'pgqueue'::regnamespace AND p.prokind = 'f' AND p.prorettype <> 'trigger'::regtype
       AND has_function_privilege(%s, p.oid, 'EXECUTE')
     ORDER BY 1"""

_VIEWS = """
    SELECT c.oid::regclass::text FROM pg_class c
     WHERE c.relnamespace = 'pgqueue'::regnamespace AND c.relkind IN ('r', 'v', 'm', 'p')
       AND has_table_privilege(%s, c.oid, 'SELECT')
     ORDER BY 1"""


def views(conn: psycopg.Connection, role: str) -> Iterator[tuple[str, str]]:
    """Each view or table that the role may read, and a query of all its rows."""
    for (name,) in conn.execute(_VIEWS, [role]).fetchall():
        yield name, f"SELECT to_jsonb(v) FROM {name} v"


def functions(
    conn: psycopg.Connection, role: str, names: Mapping[str, str], ids: Sequence[int]
) -> Iterator[tuple[str, str]]:
    """Each function that the role may call, and calls: with every choice of the arguments that it needs, and with each
    of the others in turn."""
    for name, needed, arguments, types in conn.execute(_FUNCTIONS, [role]).fetchall():
        given = list(zip(arguments, types, strict=True))
        choices = [_values(argument, type, names, ids) for argument, type in given[:needed]]
        for values in product(*choices):
            yield name, _call(name, dict(zip(arguments, values, strict=False)))
        first = {argument: values[0] for (argument, _), values in zip(given[:needed], choices, strict=True)}
        for argument, type in given[needed:]:
            for value in _values(argument, type, names, ids):
                yield name, _call(name, {**first, argument: value})


def _call(name: str, arguments: Mapping[str, str]) -> str:
    named = ", ".join(f"{argument} => {value}" if argument else value for argument, value in arguments.items())
    return f"SELECT * FROM {name}({named})"


def _values(argument: str, type: str, names: Mapping[str, str], ids: Sequence[int]) -> list[str]:
    if known := BY_NAME.get(f"{argument} {type}", BY_NAME.get(argument)):
        return [value.format(**names) for value in known]
    if argument in ("id", "on_id", "task_id", "after_id") and type == "bigint":
        return [str(id) for id in ids]
    if argument in ("ids", "after") and type == "bigint[]":
        return [f"'{{{','.join(map(str, ids))}}}'", f"'{{{ids[0]}}}'"]
    if type.endswith("[]"):
        return [f"ARRAY [{BY_TYPE.get(type[:-2], 'NULL')}]::{type}"]
    return [f"{BY_TYPE.get(type, 'NULL')}::{type}"]
