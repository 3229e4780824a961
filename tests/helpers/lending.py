"""Databases that are emptied and lent again, in place of a new one for each test.

To make and drop a database takes 60 to 90 ms, to empty one about 3. A database is lent again only if a test cannot
tell it from a new one: its catalogue is the template's, its tables have the template's rows, and its sequences begin
anew. A test costs a new database if it changed the catalogue, the settings or the rights for good, vacuumed or analyzed
a table, or left a session open. A test that leaves a prepared transaction fails.

    made -> lent -> returned, equal to the template: emptied, and kept for the next test
                 -> returned, not equal: dropped

Two connections go with each database. One is the lender's, which compares and empties. The other is the fixture `db` of
the tests, reset between two tests as a pooler does it between two clients. They stay open, also during the tests: a new
connection costs 2 ms of CPU, and has to compile and to plan each function that it calls, which costs 3 ms for a put and
as much for a take.

The rows of most catalogues are compared by xmin, which shows each row that is not the template's; from PostgreSQL 15 on
only if one of them was written to.

A table of a few pages is emptied by DELETE. TRUNCATE takes 5 ms, since it makes files for the table, its indexes and
all tables that refer to it; and PostgreSQL then discards all plans with these tables. The planner takes a table of less
than ten pages that was never vacuumed for one of ten, so dead rows do not show in its plans. A table that has grown is
truncated.

A role that may not set session_replication_role gets a new database for each test.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg import pq, sql
from psycopg.pq import ExecStatus, TransactionStatus
from psycopg.pq.abc import PGconn
from servers import Server

ROWS = "concat(count(*), ':', sum(xmin::text::bigint))"
#: In these catalogues a row's xmin tells a change.
CATALOGUES = [
    *("am", "attrdef", "attribute", "cast", "collation", "constraint", "default_acl", "description", "enum"),
    *("event_trigger", "extension", "foreign_data_wrapper", "foreign_server", "foreign_table", "index", "inherits"),
    *("init_privs", "language", "largeobject_metadata", "opclass", "operator", "policy", "publication"),
    *("range", "rewrite", "statistic_ext", "trigger", "ts_config", "type"),
]
CATALOGUED = f"SELECT ARRAY [{', '.join(f'(SELECT {ROWS} FROM pg_{name})' for name in CATALOGUES)}]"
#: From PostgreSQL 15 on: how often rows were written in the catalogues, and in the tables in which the template has
#: rows, whether or not the transaction committed. While that stays the same, so do the rows. The times tell that the
#: counters began anew.
COUNTED = """
    SELECT sum(pg_stat_get_tuples_inserted(oid) + pg_stat_get_tuples_updated(oid) + pg_stat_get_tuples_deleted(oid)),
        (SELECT pg_stat_get_db_stat_reset_time(oid) FROM pg_database WHERE datname = current_database()),
        (SELECT stats_reset FROM pg_stat_bgwriter)
    FROM pg_class
    WHERE relkind = 'r' AND (relnamespace = 'pg_catalog'::regnamespace OR oid = ANY (%s::regclass[]::oid[]))"""
#: Where xmin would tell too much: TRUNCATE writes a new row of pg_class for each table, and functions, schemas and
#: tables have new rows with the same contents after the rights of a role were granted and dropped, as sequences have
#: after _bound_anew. The sum of hashes takes less than half as long as md5 of all functions as text, which is 5 ms.
BESIDES = f"""
    WITH this AS (SELECT * FROM pg_database WHERE datname = current_database()),
         space AS (SELECT * FROM pg_namespace WHERE nspname !~ '^pg_(toast_)?temp_')
    SELECT ARRAY [
        (SELECT string_agg(concat_ws(',', oid, nspname, nspowner, nspacl), ';' ORDER BY oid) FROM space),
        (SELECT md5(string_agg(concat_ws(',', oid, relname, relnamespace, relowner, relkind, relpersistence, relacl,
                                         reloptions, relrowsecurity, relreplident, reltablespace), ';' ORDER BY oid))
         FROM pg_class WHERE relnamespace IN (SELECT oid FROM space)),
        (SELECT {ROWS} FROM pg_proc WHERE oid < 16384),
        (SELECT sum(hash_record_extended(p, 0)) FROM pg_proc p WHERE oid >= 16384)::text,
        (SELECT sum(hash_record_extended(s, 0)) FROM pg_sequence s)::text,
        (SELECT concat_ws(',', datacl, datdba, datconnlimit, datallowconn) FROM this),
        (SELECT count(*) FROM pg_db_role_setting JOIN this ON setdatabase = this.oid)::text,
        (SELECT count(*) FROM pg_shdepend JOIN this ON dbid = this.oid)::text,         -- what roles own and may
        (SELECT count(*) FROM pg_shdescription JOIN this ON objoid = this.oid)::text,
        (SELECT count(*) FROM pg_statistic WHERE starelid >= 16384)::text]"""  # TRUNCATE leaves them
#: After that the rights of the owner, which are implied, are written out. Those of an extension may always be.
IMPLIED = """
    UPDATE pg_namespace SET nspacl = NULL WHERE nspname LIKE 'pgqueue%' AND nspacl = acldefault('n', nspowner);
    UPDATE pg_class SET relacl = NULL
    WHERE relnamespace IN (SELECT oid FROM pg_namespace WHERE nspname LIKE 'pgqueue%')
      AND relacl = acldefault(CASE relkind WHEN 'S' THEN 's'::"char" ELSE 'r' END, relowner)"""
#: VACUUM changes pg_class in place, and the view pgqueue.tables shows its time; the last two are the server's.
UNCOUNTED = """
    SELECT
        (SELECT count(*) FROM pg_class
         WHERE relkind = 'r' AND oid >= 16384
           AND (reltuples <> -1
                OR coalesce(pg_stat_get_last_vacuum_time(oid), pg_stat_get_last_autovacuum_time(oid),
                            pg_stat_get_last_analyze_time(oid), pg_stat_get_last_autoanalyze_time(oid)) IS NOT NULL)),
        (SELECT count(*) FROM pg_prepared_xacts WHERE database = current_database()),
        (SELECT count(*) FROM pg_replication_slots WHERE database = current_database())"""

#: Of both connections, while no test has them.
NAME = "lender"
#: For tests that count sessions, in pg_stat_activity.
NOT_THE_LENDERS = f"application_name <> '{NAME}'"

#: DISCARD ALL without DISCARD PLANS: of what a session compiled and planned PostgreSQL itself discards what is stale.
RESET = f"""
    CLOSE ALL; SET SESSION AUTHORIZATION DEFAULT; RESET ALL; DEALLOCATE ALL; UNLISTEN *;
    SELECT pg_advisory_unlock_all(); DISCARD TEMP; DISCARD SEQUENCES; SET application_name = {NAME}""".encode()
#: From PostgreSQL 15 on: count what the session wrote at once. A session that ends does so by itself.
FLUSH = b"; SELECT pg_stat_force_next_flush()"

#: The tables that were written to since they were made or truncated, and which of them have grown.
WRITTEN = """
    SELECT oid::regclass::text, pg_relation_size(oid) > 4 * 8192 FROM pg_class
    WHERE relkind = 'r' AND oid >= 16384 AND relpersistence <> 't' AND pg_relation_size(oid) > 0
    ORDER BY 1"""
#: A statement for each sequence, after which it is as it is now.
RESTART = """
    SELECT format('SELECT setval(%L, %s, %L)', format('%I.%I', schemaname, sequencename),
                  coalesce(last_value, start_value), last_value IS NOT NULL)
    FROM pg_sequences"""
#: A statement for each sequence that gives it its bounds, of which pgqueue.set_server makes other ones.
BOUNDS = """
    SELECT format('%I.%I', schemaname, sequencename),
           format('ALTER SEQUENCE %I.%I MINVALUE %s MAXVALUE %s START %s RESTART',
                  schemaname, sequencename, min_value, max_value, start_value)
    FROM pg_sequences"""
CONTENTS = "SELECT array_agg(t::text ORDER BY t::text) FROM {} AS t"
FILL = """
    INSERT INTO {table} ({columns}) OVERRIDING SYSTEM VALUE
    SELECT {columns} FROM (SELECT (row::{table}).* FROM unnest({rows}::text[]) AS row) AS row"""
COLUMNS = """
    SELECT string_agg(quote_ident(attname), ', ') FROM pg_attribute
    WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped AND attgenerated = ''"""

#: For the object of a connection that has gone on without it.
CLOSED = pq.PGconn.connect_start(b"")
CLOSED.finish()


class Lent(psycopg.Connection[Any]):
    """What a test has of a connection that stays open: an object of its own."""

    def back(self) -> PGconn | None:
        """The connection, unless it is closed, or in a transaction. The object is closed."""
        pgconn, self.pgconn = self.pgconn, CLOSED
        if pgconn.transaction_status == TransactionStatus.IDLE:
            return pgconn
        pgconn.finish()
        return None


class Database:
    """A database, and the two connections that go with it."""

    def __init__(self, server: Server, name: str) -> None:
        self.name = name
        self.counted: object = None  # COUNTED when all that it counts was last compared
        self._dsn = server.dsn(name)
        self._own: psycopg.Connection | None = None
        self._pgconn: PGconn | None = None  # of the tests, while none has it
        self._lent: Lent | None = None

    @property
    def own(self) -> psycopg.Connection:
        """The lender's connection. No trigger fires for what it writes, not those of foreign keys either."""
        if self._own is None or self._own.closed:
            self._own = psycopg.connect(
                self._dsn, autocommit=True, application_name=NAME, options="-c session_replication_role=replica"
            )
        return self._own

    def connection(self) -> psycopg.Connection:
        """The connection of the tests, in autocommit and as a new one. One test has it at a time."""
        if self._lent is None:
            if self._pgconn is None:
                self._lent = Lent.connect(self._dsn, autocommit=True)
            else:
                self._lent, self._pgconn = Lent(self._pgconn), None
                self._lent.autocommit = True
                self._lent.execute("RESET application_name")
        return self._lent

    def take_back(self) -> None:
        """Take the tests' connection back, and reset it. One that is broken, or in a transaction, is closed."""
        if self._lent is None:
            return
        pgconn, self._lent = self._lent.back(), None
        if pgconn is None:
            return
        if pgconn.exec_(RESET + (FLUSH if pgconn.server_version >= 150000 else b"")).status == ExecStatus.FATAL_ERROR:
            pgconn.finish()
            return
        while pgconn.notifies():
            pass  # what came for the last test
        self._pgconn = pgconn

    def pids(self) -> list[int]:
        """The backends of both connections."""
        own = [self._own.info.backend_pid] if self._own is not None and not self._own.closed else []
        return own + ([self._pgconn.backend_pid] if self._pgconn is not None else [])

    def close(self) -> None:
        self.take_back()
        if self._pgconn is not None:
            self._pgconn.finish()
        if self._own is not None:
            self._own.close()


class Lender:
    """Lends databases that are equal to a template."""

    def __init__(self, server: Server, template: str) -> None:
        self._server = server
        self._template = template
        self._free: list[Database] = []
        self._lent: dict[str, Database] = {}
        with psycopg.connect(server.dsn(template), autocommit=True) as conn:
            names = [name for name, _ in conn.execute(WRITTEN)]
            self._filled = {name: conn.execute(contents(name)).fetchone() for name in names}
            self._restart = sql.SQL("; ").join([sql.SQL(statement) for (statement,) in conn.execute(RESTART)])
            self._bounds = dict(conn.execute(BOUNDS).fetchall())
            self._counts = conn.info.server_version >= 150000
            self._compared = looked(conn)
            self._uncounted = conn.execute(UNCOUNTED).fetchone()

    @contextmanager
    def lent(self) -> Iterator[str]:
        """The name of a database that is as the template."""
        database = self._free.pop() if self._free else Database(self._server, self._server.create(self._template))
        self._lent[database.name] = database
        try:
            yield database.name
        finally:
            del self._lent[database.name]
            database.take_back()
            if self._server.is_left(database.name, but=database.pids()) and self._emptied(database):
                self._free.append(database)
            else:
                self._drop(database)

    def connection(self, name: str) -> psycopg.Connection:
        """A connection in autocommit to a database that is lent, as a new one."""
        return self._lent[name].connection()

    def close(self) -> None:
        """Drop the databases that are not lent."""
        while self._free:
            self._drop(self._free.pop())

    def _drop(self, database: Database) -> None:
        database.close()
        self._server.drop(database.name)

    def _emptied(self, database: Database) -> bool:
        """Empty the tables. Returns False if the database differs from the template otherwise."""
        try:
            if database.own.execute(UNCOUNTED).fetchone() != self._uncounted:
                return False
            counted = database.own.execute(COUNTED, [list(self._filled)]).fetchone() if self._counts else None
            if counted is None or counted != database.counted:
                if looked(database.own) != self._compared:
                    database.own.execute(IMPLIED)
                    self._bound_anew(database.own)
                    counted = None  # is another one now, and so is that after _refill
                    if looked(database.own) != self._compared:
                        return False
                database.counted = None if self._refill(database.own) else counted
            self._empty(database.own)
        except psycopg.Error:  # the database or one of its tables is gone, or refuses connections
            return False
        return True

    def _bound_anew(self, conn: psycopg.Connection) -> None:
        """Give the sequences the template's bounds."""
        for name, statement in conn.execute(BOUNDS).fetchall():
            if statement != (bounds := self._bounds.get(name, statement)):
                conn.execute(sql.SQL(bounds))

    def _refill(self, conn: psycopg.Connection) -> bool:
        """Give the tables in which the template has rows these rows again. Returns whether one had others."""
        changed = False
        for table, rows in self._filled.items():
            if conn.execute(contents(table)).fetchone() != rows:
                conn.execute(sql.SQL("DELETE FROM {}").format(sql.SQL(table)))
                ((columns,),) = conn.execute(COLUMNS, [table])
                fill = sql.SQL(FILL).format(table=sql.SQL(table), columns=sql.SQL(columns), rows=rows and rows[0])
                conn.execute(fill)
                changed = True
        return changed

    def _empty(self, conn: psycopg.Connection) -> None:
        written = [(sql.SQL(table), grown) for table, grown in conn.execute(WRITTEN) if table not in self._filled]
        if grown := [table for table, grown in written if grown]:
            # CASCADE: PostgreSQL refuses a table to which another one refers, even an empty one
            conn.execute(sql.SQL("TRUNCATE {} CASCADE").format(sql.SQL(", ").join(grown)))
        empty = [sql.SQL("DELETE FROM {}").format(table) for table, grown in written if not grown]
        conn.execute(sql.SQL("; ").join([*empty, self._restart]))


def contents(table: str) -> sql.Composed:
    return sql.SQL(CONTENTS).format(sql.SQL(table))


def looked(conn: psycopg.Connection) -> list[object]:
    """What is compared if it was written to."""
    return [conn.execute(query).fetchone() for query in (CATALOGUED, BESIDES)]
