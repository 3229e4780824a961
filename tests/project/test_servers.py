"""The servers that `--pg` names: a container of a Docker engine that runs nothing, and servers that cannot be had."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import uuid

import pytest
from checkout import CHECKOUT, HELPERS
from docker_engine import engine
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict
from servers import Server, Unavailable, check

NOWHERE = "tcp://127.0.0.1:1"  # a port that cannot be listened to without rights

pytestmark = pytest.mark.once

# A process of its own: testcontainers reads its settings when it is imported.
SERVED = """
    import json
    from servers import serve

    with serve("docker:postgres:16-alpine") as server:
        name = server.create()
        server.drop(name)
        print(json.dumps([server.kind, server.dsn("elsewhere"), server.version()]))
"""


def served(**environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(SERVED)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(HELPERS), *sys.path]), **environment},
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.slow
def test_a_container_is_made_awaited_used_and_removed(pg_server: Server) -> None:
    name = f"container_{uuid.uuid4().hex[:12]}"
    with pg_server.connect() as admin:
        admin.execute(sql.SQL("CREATE ROLE {} SUPERUSER LOGIN PASSWORD 'sesame'").format(sql.Identifier(name)))
        admin.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        try:
            with engine(pg_server.conninfo, tries=3) as (host, asked):
                done = served(
                    DOCKER_HOST=host,
                    POSTGRES_USER=name,
                    POSTGRES_PASSWORD="sesame",
                    POSTGRES_DB=name,
                    TESTCONTAINERS_RYUK_DISABLED="true",
                    TESTCONTAINERS_CONNECTION_MODE="docker_host",
                    TC_POOLING_INTERVAL="0.05",
                )
        finally:
            admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))
            admin.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(name)))
    assert done.returncode == 0, done.stderr
    kind, dsn, version = json.loads(done.stdout)
    assert (kind, version) == ("docker", pg_server.version())
    told = conninfo_to_dict(dsn)
    assert (told["user"], told["password"], told["dbname"]) == (name, "sesame", "elsewhere")
    assert asked.pulled == ["postgres:16-alpine"]
    assert asked.created["Image"] == "postgres:16-alpine"
    assert list(asked.created["ExposedPorts"]) == ["5432/tcp"]
    assert sorted(asked.created["Env"]) == [f"POSTGRES_DB={name}", "POSTGRES_PASSWORD=sesame", f"POSTGRES_USER={name}"]
    assert asked.created["Cmd"][:3] == ["postgres", "-c", "fsync=off"]
    assert len(asked.checks) == 3
    assert all("psql" in command for command in asked.checks)
    assert asked.state == "removed"


@pytest.mark.slow
def test_a_container_is_removed_after_a_failure(pg_server: Server) -> None:
    """The role of the container does not exist, so the first connection fails."""
    with engine(pg_server.conninfo) as (host, asked):
        done = served(
            DOCKER_HOST=host,
            POSTGRES_USER="no_such_role",
            TESTCONTAINERS_RYUK_DISABLED="true",
            TESTCONTAINERS_CONNECTION_MODE="docker_host",
        )
    assert "no_such_role" in done.stderr
    assert (done.returncode, asked.state) == (1, "removed")


@pytest.mark.parametrize(
    ("choice", "line"),
    [
        ("docker", f"--pg=docker: no Docker engine answers at {NOWHERE}; start it, or use --pg=embedded"),
        ("dsn", "--pg=dsn: set PGQUEUE_TEST_DSN to the DSN of a role that may create databases"),
        ("oracle", "--pg=oracle: expected auto | dsn | docker[:image] | embedded | system[:bindir] | citus[:bindir]"),
    ],
)
def test_a_server_that_cannot_be_had_is_one_line(monkeypatch: pytest.MonkeyPatch, choice: str, line: str) -> None:
    monkeypatch.setenv("DOCKER_HOST", NOWHERE)
    monkeypatch.delenv("PGQUEUE_TEST_DSN", raising=False)
    with pytest.raises(Unavailable) as raised:
        check(choice)
    assert str(raised.value) == line


@pytest.mark.slow
def test_it_ends_the_run_before_the_first_test() -> None:
    command = [sys.executable, "-m", "pytest", "--pg=docker", "tests/sql"]
    done = subprocess.run(
        command, cwd=CHECKOUT, env={**os.environ, "DOCKER_HOST": NOWHERE}, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "Traceback" not in done.stderr
    assert [line for line in done.stderr.splitlines() if line] == [
        f"ERROR: --pg=docker: no Docker engine answers at {NOWHERE}; start it, or use --pg=embedded"
    ]
