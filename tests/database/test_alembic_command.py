"""The command `alembic` in the checkout: the same schema as `pgqueue migrate`, by Alembic's own command line."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import catalogue
import psycopg
import pytest
from checkout import CHECKOUT
from commands import environment

from pgqueue import migrate
from pgqueue import sql as schema

pytestmark = pytest.mark.once


def alembic(*arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "alembic", *arguments]
    return subprocess.run(
        command, cwd=CHECKOUT, env=environment(**settings), capture_output=True, text=True, timeout=120, check=False
    )


@pytest.mark.slow
@pytest.mark.parametrize("way", ["-x", "PGQUEUE_DSN", "DATABASE_URL"])
def test_upgrade_makes_the_schema_of_pgqueue_migrate(way: str, dsn: str, empty_dsn: str) -> None:
    nowhere = "postgresql://127.0.0.1:1/nowhere"
    given: dict[str, Any] = {
        "-x": {"PGQUEUE_DSN": nowhere},
        "PGQUEUE_DSN": {"PGQUEUE_DSN": empty_dsn, "DATABASE_URL": nowhere},
        "DATABASE_URL": {"DATABASE_URL": empty_dsn},
    }[way]
    options = ["-x", f"dsn={empty_dsn}"] if way == "-x" else []
    done = alembic(*options, "upgrade", "head", **given)
    assert done.returncode == 0, done.stderr
    with psycopg.connect(dsn) as one, psycopg.connect(empty_dsn) as other:
        assert catalogue.describe(other) == catalogue.describe(one)


@pytest.mark.slow
def test_up_down_and_current(empty_dsn: str) -> None:
    def call(*arguments: str) -> str:
        done = alembic(*arguments, PGQUEUE_DSN=empty_dsn)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert call("current") == ""
    with psycopg.connect(empty_dsn) as conn:
        assert conn.execute("SELECT to_regnamespace('pgqueue')").fetchone() == (None,)  # to ask changes nothing
    call("upgrade", "head")
    assert call("current") == f"{schema.NEWEST} (head)\n"
    assert call("upgrade", "head") == ""
    assert migrate.status(empty_dsn).state == "up to date"
    call("downgrade", "base")
    assert migrate.status(empty_dsn).state == "not installed"


@pytest.mark.slow
def test_a_downgrade_that_would_lose_tasks_is_refused_in_one_line(dsn: str, db: psycopg.Connection) -> None:
    db.execute("SELECT pgqueue.put('q', '1')")
    done = alembic("downgrade", "base", PGQUEUE_DSN=dsn)
    assert done.returncode != 0
    assert "still hold 1 tasks" in done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    assert migrate.status(dsn).state == "up to date"


@pytest.mark.slow
def test_a_database_that_is_away_is_told_in_one_line() -> None:
    done = alembic("upgrade", "head", PGQUEUE_DSN="postgresql://127.0.0.1:1/nowhere")
    assert done.returncode != 0
    assert "Connection refused" in done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr


@pytest.mark.slow
def test_the_script_for_psql(empty_dsn: str, dsn: str) -> None:
    done = alembic("upgrade", "head", "--sql", PGQUEUE_DSN="postgresql://127.0.0.1:1/nowhere")
    assert done.returncode == 0, done.stderr
    with psycopg.connect(empty_dsn, autocommit=True) as conn:
        conn.execute(done.stdout)  # type: ignore[call-overload]  # SQL that a program wrote
    with psycopg.connect(dsn) as one, psycopg.connect(empty_dsn) as other:
        assert catalogue.describe(other) == catalogue.describe(one)
