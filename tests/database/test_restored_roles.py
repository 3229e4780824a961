"""A dump that is restored where a role is missing, or where another role has its name."""

from __future__ import annotations

import subprocess
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
from programs_of_servers import program
from psycopg import sql
from rights_victim import refused
from servers import Server

from pgqueue import migrate

pytestmark = pytest.mark.slow


@contextmanager
def restored(server: Server, dump: Path) -> Iterator[psycopg.Connection]:
    """A new database from a plain dump; psql goes on after an error, as by default."""
    name = server.create()
    psql = program("psql", server)
    subprocess.run([psql, "-q", "-d", server.dsn(name), "-f", dump], check=True, timeout=60, capture_output=True)
    with psycopg.connect(server.dsn(name), autocommit=True) as copy:
        yield copy
    server.drop(name)


@pytest.fixture
def names(db: psycopg.Connection) -> Iterator[list[str]]:
    made = [f"pgqueue_test_{uuid.uuid4().hex[:12]}" for _ in range(3)]
    yield made
    for name in made:
        if db.execute("SELECT FROM pg_roles WHERE rolname = %s", [name]).rowcount:
            db.execute(sql.SQL("DROP OWNED BY {0}; DROP ROLE {0}").format(sql.Identifier(name)))


def create(db: psycopg.Connection, *names: str) -> None:
    for name in names:
        db.execute(sql.SQL("CREATE ROLE {}").format(sql.Identifier(name)))


def puts(copy: psycopg.Connection, role: str, queue: str) -> None:
    copy.execute(sql.SQL("SET ROLE {}").format(sql.Identifier(role)))
    try:
        copy.execute("SELECT pgqueue.put(%s, '1')", [queue])
    finally:
        copy.execute("RESET ROLE")


def may_not_put(copy: psycopg.Connection, role: str, queue: str) -> None:
    copy.execute(sql.SQL("SET ROLE {}").format(sql.Identifier(role)))
    refused(copy, f"SELECT pgqueue.put('{queue}', '1')")
    copy.execute("RESET ROLE")


@pytest.mark.parametrize("renamed", [False, True])
def test_a_missing_role_closes_its_own_rights_and_no_others(
    pg_server: Server, dsn: str, db: psycopg.Connection, names: list[str], tmp_path: Path, renamed: bool
) -> None:
    one, other, gone = names
    create(db, *names)
    for role in names:
        db.execute("SELECT pgqueue.grant_to(%s, pattern => %s)", [role, f"{role}.*"])
        db.execute(sql.SQL("SET ROLE {}").format(sql.Identifier(role)))
        db.execute("SELECT pgqueue.put(%s, '1')", [f"{role}.q"])
        db.execute("RESET ROLE")
    dump = tmp_path / "app.sql"
    subprocess.run([program("pg_dump", pg_server), "-d", dsn, "-f", dump], check=True, timeout=60)
    if renamed:
        db.execute(sql.SQL("ALTER ROLE {} RENAME TO {}").format(sql.Identifier(gone), sql.Identifier(f"{gone}_2")))
    else:
        db.execute(sql.SQL("DROP OWNED BY {0}; DROP ROLE {0}").format(sql.Identifier(gone)))
    with restored(pg_server, dump) as copy:
        for _ in range(2):
            puts(copy, one, f"{one}.q")
            may_not_put(copy, one, f"{other}.q")
            may_not_put(copy, one, f"{gone}.q")
            if renamed:
                may_not_put(copy, f"{gone}_2", f"{gone}.q")
            copy.execute("SELECT pgqueue.clean_up()")
        (detail,) = copy.execute("SELECT detail FROM pgqueue.health WHERE name = 'lost_roles'").fetchone() or ("",)
        assert detail.startswith(gone)
        create(db, gone)
        may_not_put(copy, gone, f"{gone}.q")
        migrate.up(connection=copy)
        puts(copy, gone, f"{gone}.q")
        may_not_put(copy, gone, f"{one}.q")
        assert copy.execute("SELECT status FROM pgqueue.health WHERE name = 'lost_roles'").fetchone() == ("ok",)
        copy.execute(sql.SQL("DROP OWNED BY {}").format(sql.Identifier(gone)))
    if renamed:
        db.execute(sql.SQL("DROP OWNED BY {0}; DROP ROLE {0}").format(sql.Identifier(f"{gone}_2")))


def test_a_dump_after_a_rename_has_the_new_name(
    pg_server: Server, dsn: str, db: psycopg.Connection, names: list[str], tmp_path: Path
) -> None:
    """And so a role that got the old name has nothing in the copy, whether it was made before or after the dump."""
    old, new, _ = names
    create(db, old)
    db.execute("SELECT pgqueue.grant_to(%s)", [old])
    db.execute(sql.SQL("SET ROLE {}").format(sql.Identifier(old)))
    db.execute("SELECT pgqueue.set_schedule('s', 'q', '1', every => '1 h')")
    db.execute("RESET ROLE")
    db.execute(sql.SQL("ALTER ROLE {} RENAME TO {}").format(sql.Identifier(old), sql.Identifier(new)))
    create(db, old)
    db.execute("SELECT pgqueue.grant('other', %s)", [old])
    dump = tmp_path / "app.sql"
    subprocess.run([program("pg_dump", pg_server), "-d", dsn, "-f", dump], check=True, timeout=60)
    with restored(pg_server, dump) as copy:
        puts(copy, new, "q")
        may_not_put(copy, old, "q")
        assert copy.execute("SELECT role FROM pgqueue.schedules").fetchall() == [(new,)]
        for role in (old, new):
            copy.execute(sql.SQL("DROP OWNED BY {}").format(sql.Identifier(role)))
