"""A plugin of pytest for greenstalk's tests, which start a beanstalkd each: here a `pgqueue beanstalkd`.

SUITE_URL is a DSN whose role may create databases: each server has an empty one, as a beanstalkd has no jobs at first.
Or it is the path of beanstalkd.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from pgqueue import migrate

URL = os.environ["SUITE_URL"]
TEMPLATE, DATABASE = "suite_greenstalk_template", "suite_greenstalk"


class Server(subprocess.Popen[Any]):
    """Serves from when it is made: the tests connect after a tenth of a second."""

    def __init__(self, command: list[str]) -> None:
        _, _, host, *port = command  # -l HOST -p PORT, or -l unix:PATH
        address = f"{host}:{port[1]}" if port else host
        recreate(DATABASE, TEMPLATE)
        own = [sys.executable, "-m", "pgqueue", "--dsn", dsn_of(DATABASE), "beanstalkd", "--listen", address]
        super().__init__(own, stdout=subprocess.PIPE, text=True)
        assert self.stdout is not None
        assert self.stdout.readline(), f"there is no server at {address}"


def dsn_of(database: str) -> str:
    return make_conninfo(**{**conninfo_to_dict(URL), "dbname": database})


def recreate(database: str, template: str = "template1") -> None:
    with psycopg.connect(URL, autocommit=True) as conn:
        conn.execute(f"DROP DATABASE IF EXISTS {database} WITH (FORCE)")
        conn.execute(f"CREATE DATABASE {database} TEMPLATE {template}")


@pytest.fixture(scope="session", autouse=True)
def beanstalkd() -> Iterator[None]:
    recreate(TEMPLATE)
    migrate.up(dsn_of(TEMPLATE))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subprocess, "Popen", Server)
        yield
    with psycopg.connect(URL, autocommit=True) as conn:
        conn.execute(f"DROP DATABASE IF EXISTS {DATABASE} WITH (FORCE)")
        conn.execute(f"DROP DATABASE {TEMPLATE}")


if os.path.exists(URL):
    os.environ["BEANSTALKD_PATH"] = URL
    del beanstalkd
