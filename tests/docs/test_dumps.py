"""A dump of a database with queues, restored elsewhere, as docs/deployment/backup.md says."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
from programs_of_servers import program
from servers import Server

import pgqueue


@contextmanager
def copied(server: Server, dsn: str, folder: Path, *options: str) -> Iterator[str]:
    """Dump a database with these options, and restore it into another one."""
    dump, restore = program("pg_dump", server), program("pg_restore", server)
    file, name = folder / "app.dump", server.create()
    subprocess.run([dump, "--format=custom", *options, "--file", file, "--dbname", dsn], check=True, timeout=60)
    subprocess.run([restore, "--dbname", server.dsn(name), file], check=True, timeout=60)
    yield server.dsn(name)
    server.drop(name)


@pytest.mark.slow
def test_a_dump_without_unlogged_data_has_every_task(pg_server: Server, dsn: str, tmp_path: Path) -> None:
    with pgqueue.Client(dsn) as client:
        mail = client.queue("mail")
        mail.put_many(range(5))
        mail.put(5, delay=3600)
        taken, buried = mail.take_many(2, timeout=5)
        buried.bury(error="no such address")
        with copied(pg_server, dsn, tmp_path, "--no-unlogged-table-data") as other, pgqueue.Client(other) as restored:
            found = {task.data: task.state for task in map(restored.queue("mail").peek, range(1, 7))}
            assert found == {
                taken.data: "ready",
                buried.data: "buried",
                2: "ready",
                3: "ready",
                4: "ready",
                5: "delayed",
            }
            assert restored.queue("mail").stats()["ready"] == 4
            assert len(restored.queue("mail").take_many(10, timeout=5)) == 4


@pytest.mark.slow
def test_a_dump_has_the_number_of_the_server(pg_server: Server, dsn: str, tmp_path: Path) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("SELECT pgqueue.set_server(3)")
    with pgqueue.Client(dsn) as client:
        before = client.queue("mail").put("hello")
        with copied(pg_server, dsn, tmp_path) as other, pgqueue.Client(other) as restored:
            assert restored.queue("mail").peek(before.id).data == "hello"
            assert restored.queue("mail").put("again").id == before.id + 1 == (3 << 43) + 2


@pytest.mark.slow
def test_a_dump_with_it_gives_taken_tasks_back_after_a_while(pg_server: Server, dsn: str, tmp_path: Path) -> None:
    with pgqueue.Client(dsn) as client:
        client.queue("mail").put("hello")
        client.queue("mail").take(timeout=5)
        with copied(pg_server, dsn, tmp_path) as other:
            with psycopg.connect(other, autocommit=True) as connection:
                assert connection.execute("SELECT count(*) FROM pgqueue.takes").fetchone() == (1,)
            with pgqueue.Client(other) as restored:
                assert restored.queue("mail").take(timeout=30).data == "hello"
