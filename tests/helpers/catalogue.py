"""What the server's catalogue says about our schema, as lines of text: equal lines, equal schema.

The version table is left out: it is Alembic's, and running sql/* by hand does not create it.
"""

from __future__ import annotations

import psycopg

# Debian's PostgreSQL 15.20 adds to each column's options the place in the log where the column was made:
# pg_attver, documented nowhere, different in any two tables. Only that entry is left out; n_distinct and the
# like are compared.
_OPTIONS = "ARRAY(SELECT o FROM unnest(a.attoptions) o WHERE o NOT LIKE 'pg_attver=%' ORDER BY o)"

_OURS = "c.relnamespace = 'pgqueue'::regnamespace AND c.relname !~ '^schema_version'"

# The first column is the object's name. Nothing is asked for by number: oids differ between databases, and
# the numbers of columns between a table that was altered and one that was made at once.
_QUERIES = {
    "schema": """
        SELECT nspname, nspacl, obj_description(oid) FROM pg_namespace
         WHERE oid = 'pgqueue'::regnamespace""",
    "relation": f"""
        SELECT c.oid::regclass, c.relkind, c.relpersistence, c.reloptions, c.relacl, c.relrowsecurity,
               c.relreplident, obj_description(c.oid),
               CASE WHEN c.relkind IN ('v', 'm') THEN pg_get_viewdef(c.oid) END
          FROM pg_class c
         WHERE {_OURS}""",
    "column": f"""
        SELECT c.oid::regclass, row_number() OVER (PARTITION BY c.oid ORDER BY a.attnum),
               a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull, a.attidentity,
               a.attgenerated, a.attstorage, a.attcompression, a.attcollation::regcollation,
               {_OPTIONS}, a.attacl,
               pg_get_expr(d.adbin, d.adrelid), col_description(c.oid, a.attnum)
          FROM pg_class c
          JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
          LEFT JOIN pg_attrdef d ON (d.adrelid, d.adnum) = (a.attrelid, a.attnum)
         WHERE {_OURS}""",
    "index": f"""
        SELECT indexrelid::regclass, pg_get_indexdef(indexrelid), indisvalid, obj_description(indexrelid)
          FROM pg_index JOIN pg_class c ON c.oid = indrelid
         WHERE {_OURS}""",
    "sequence": f"""
        SELECT seqrelid::regclass, seqtypid::regtype, seqstart, seqincrement, seqmin, seqmax,
               seqcache, seqcycle
          FROM pg_sequence JOIN pg_class c ON c.oid = seqrelid
         WHERE {_OURS}""",
    "constraint": """
        SELECT k.conrelid::regclass, k.contypid::regtype, k.conname, pg_get_constraintdef(k.oid),
               k.convalidated, obj_description(k.oid)
          FROM pg_constraint k
         WHERE k.connamespace = 'pgqueue'::regnamespace
           AND k.conrelid IS DISTINCT FROM to_regclass('pgqueue.schema_version')""",
    "trigger": f"""
        SELECT t.tgrelid::regclass, t.tgname, pg_get_triggerdef(t.oid), t.tgenabled, obj_description(t.oid)
          FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid
         WHERE {_OURS} AND NOT t.tgisinternal""",
    "function": """
        SELECT p.oid::regprocedure, CASE WHEN p.prokind <> 'a' THEN pg_get_functiondef(p.oid) END, p.proacl,
               obj_description(p.oid)
          FROM pg_proc p
         WHERE p.pronamespace = 'pgqueue'::regnamespace""",
    "type": """
        SELECT t.oid::regtype, t.typtype, t.typacl, t.typnotnull, t.typdefault, t.typbasetype::regtype,
               (SELECT array_agg(enumlabel ORDER BY enumsortorder) FROM pg_enum WHERE enumtypid = t.oid),
               obj_description(t.oid)
          FROM pg_type t
         WHERE t.typnamespace = 'pgqueue'::regnamespace AND t.typname !~ '^_?schema_version'""",
    "statistics": """
        SELECT stxname, pg_get_statisticsobjdef(oid) FROM pg_statistic_ext
         WHERE stxnamespace = 'pgqueue'::regnamespace""",
}


def describe(connection: psycopg.Connection) -> list[str]:
    """The schema's description, in a fixed order; empty when there is nothing of ours."""
    if connection.execute("SELECT to_regnamespace('pgqueue')").fetchone() == (None,):
        return []
    lines = []
    for kind, query in _QUERIES.items():
        rows = connection.execute(f"SELECT q::text FROM ({query}) q").fetchall()
        lines += sorted(f"{kind} {row[0]}" for row in rows)
    return lines
