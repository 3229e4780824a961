"""Databases that are emptied and lent again, in place of a new one for each test.

To make and drop a database takes 60 to 90 ms, to empty one about 15. A database is lent again only if a test cannot
tell it from a new one: its catalogue is the template's, its tables are empty, and its sequences begin anew. A test
costs a new database if it changed the catalogue, the settings or the rights, wrote into a table in which the template
has rows, vacuumed or analyzed a table, or left a session open. A test that leaves a prepared transaction fails.

    made -> lent -> returned, equal to the template: emptied, and kept for the next test
                 -> returned, not equal: dropped

The rows of catalogues are compared by xmin, which shows each row that is not the template's; from PostgreSQL 15 on only
if one of them was written to. pg_class is compared by its contents: TRUNCATE, which empties the tables, writes a new
row for each. DELETE is quicker, but the planner would then know the tables as empty, and plan otherwise than in a new
database.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
from psycopg import sql
from servers import Server

ROWS = "concat(count(*), ':', sum(xmin::text::bigint))"
#: In these catalogues a row's xmin tells a change.
CATALOGUES = [
    *("am", "attrdef", "attribute", "cast", "collation", "constraint", "default_acl", "description", "enum"),
    *("event_trigger", "extension", "foreign_data_wrapper", "foreign_server", "foreign_table", "index", "inherits"),
    *("init_privs", "language", "largeobject_metadata", "opclass", "operator", "policy", "proc", "publication"),
    *("range", "rewrite", "sequence", "statistic_ext", "trigger", "ts_config", "type"),
]
CATALOGUED = f"SELECT ARRAY [{', '.join(f'(SELECT {ROWS} FROM pg_{name})' for name in CATALOGUES)}]"
#: From PostgreSQL 15 on: how often rows of the catalogues were written, whether or not the transaction committed. While
#: that stays the same, so do the rows. TRUNCATE writes to pg_class alone. The times tell that the counters began anew.
COUNTED = """
    SELECT sum(pg_stat_get_tuples_inserted(oid) + pg_stat_get_tuples_updated(oid) + pg_stat_get_tuples_deleted(oid)),
        (SELECT pg_stat_get_db_stat_reset_time(oid) FROM pg_database WHERE datname = current_database()),
        (SELECT stats_reset FROM pg_stat_bgwriter)
    FROM pg_class
    WHERE relnamespace = 'pg_catalog'::regnamespace AND relkind = 'r' AND NOT relisshared
      AND oid <> 'pg_class'::regclass"""
#: What neither of the two knows.
BESIDES = f"""
    WITH this AS (SELECT * FROM pg_database WHERE datname = current_database()),
         space AS (SELECT oid, xmin FROM pg_namespace WHERE nspname !~ '^pg_(toast_)?temp_')
    SELECT ARRAY [
        (SELECT {ROWS} FROM space),
        (SELECT md5(string_agg(concat_ws(',', oid, relname, relnamespace, relowner, relkind, relpersistence, relacl,
                                         reloptions, relrowsecurity, relreplident, reltablespace), ';' ORDER BY oid))
         FROM pg_class WHERE relnamespace IN (SELECT oid FROM space)),
        (SELECT concat_ws(',', datacl, datdba, datconnlimit, datallowconn) FROM this),
        (SELECT count(*) FROM pg_db_role_setting JOIN this ON setdatabase = this.oid)::text,
        (SELECT count(*) FROM pg_shdepend JOIN this ON dbid = this.oid)::text,         -- what roles own and may
        (SELECT count(*) FROM pg_shdescription JOIN this ON objoid = this.oid)::text,
        (SELECT count(*) FROM pg_statistic WHERE starelid >= 16384)::text,              -- TRUNCATE leaves them
        (SELECT count(*) FROM pg_class                 -- the view pgqueue.tables shows when a table was vacuumed
         WHERE relkind = 'r' AND oid >= 16384
           AND coalesce(pg_stat_get_last_vacuum_time(oid), pg_stat_get_last_autovacuum_time(oid),
                        pg_stat_get_last_analyze_time(oid), pg_stat_get_last_autoanalyze_time(oid)) IS NOT NULL)::text,
        (SELECT count(*) FROM pg_prepared_xacts JOIN this ON database = datname)::text,
        (SELECT count(*) FROM pg_replication_slots JOIN this ON database = datname)::text]"""

#: The tables that were written to since they were made or emptied, or that the planner knows as empty by a VACUUM.
WRITTEN = """
    SELECT oid::regclass::text FROM pg_class
    WHERE relkind = 'r' AND oid >= 16384 AND relpersistence <> 't' AND (pg_relation_size(oid) > 0 OR reltuples <> -1)
    ORDER BY 1"""
#: A statement for each sequence, after which it is as it is now.
RESTART = """
    SELECT format('SELECT setval(%L, %s, %L)', format('%I.%I', schemaname, sequencename),
                  coalesce(last_value, start_value), last_value IS NOT NULL)
    FROM pg_sequences"""
CONTENTS = "SELECT md5(string_agg(t::text, '|' ORDER BY t::text)) FROM {} AS t"


class Lender:
    """Lends databases that are equal to a template."""

    def __init__(self, server: Server, template: str) -> None:
        self._server = server
        self._template = template
        self._free: list[str] = []
        self._counted: dict[str, object] = {}  # by database: COUNTED when its catalogues were last compared
        with self._connect(template) as conn:
            self._filled = [name for (name,) in conn.execute(WRITTEN)]
            self._restart = sql.SQL("; ").join([sql.SQL(statement) for (statement,) in conn.execute(RESTART)])
            self._catalogued = conn.execute(CATALOGUED).fetchone()
            self._besides = self._looked(conn)

    @contextmanager
    def lent(self) -> Iterator[str]:
        """The name of a database that is as the template."""
        name = self._free.pop() if self._free else self._server.create(self._template)
        try:
            yield name
        finally:
            if self._server.is_left(name) and self._emptied(name):
                self._free.append(name)
            else:
                self._server.drop(name)

    def close(self) -> None:
        """Drop the databases that are not lent."""
        while self._free:
            self._server.drop(self._free.pop())

    def _connect(self, name: str) -> psycopg.Connection:
        return psycopg.connect(self._server.dsn(name), autocommit=True)

    def _looked(self, conn: psycopg.Connection) -> list[object]:
        filled = [conn.execute(sql.SQL(CONTENTS).format(sql.SQL(name))).fetchone() for name in self._filled]
        return [conn.execute(BESIDES).fetchone(), filled]

    def _is_as_the_template(self, name: str, conn: psycopg.Connection) -> bool:
        counted = conn.execute(COUNTED).fetchone() if conn.info.server_version >= 150000 else None
        if counted is None or counted != self._counted.get(name):
            if conn.execute(CATALOGUED).fetchone() != self._catalogued:
                return False
            self._counted[name] = counted
        return self._looked(conn) == self._besides

    def _emptied(self, name: str) -> bool:
        """Empty the tables. Returns False, and does nothing, if the database differs from the template otherwise."""
        try:
            with self._connect(name) as conn:
                if not self._is_as_the_template(name, conn):
                    return False
                written = [sql.SQL(table) for (table,) in conn.execute(WRITTEN) if table not in self._filled]
                if written:  # CASCADE: PostgreSQL refuses a table to which another one refers, even an empty one
                    conn.execute(sql.SQL("TRUNCATE {} CASCADE").format(sql.SQL(", ").join(written)))
                conn.execute(self._restart)
        except psycopg.Error:  # the database or one of its tables is gone, or refuses connections
            return False
        return True
