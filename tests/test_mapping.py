"""docs/guides/mapping.md promises names: each of them exists."""

from __future__ import annotations

import re
from pathlib import Path

import psycopg
import pytest

import pgqueue
from pgqueue import Claim, Client, Queue, Task, WatchList

TEXT = (Path(__file__).parent.parent / "docs" / "guides" / "mapping.md").read_text("utf-8")
CELLS = [line.split(" | ")[1:] for line in TEXT.splitlines() if line.startswith("| ")]  # not the original's
OURS = "\n".join("\n".join(re.findall(r"`([^`]+)`", cell)) for cells in CELLS for cell in cells)
HANDLES = {"client": Client, "queue": Queue, "task": Task, "claim": Claim, "watched": WatchList}


def handles() -> list[tuple[str, str]]:
    return sorted(set(re.findall(rf"\b({'|'.join(HANDLES)})\.(\w+)", OURS)))


@pytest.mark.parametrize(("handle", "name"), handles())
def test_a_method_exists(handle: str, name: str) -> None:
    instance_has = {("queue", "name"), ("queue", "tube")}
    assert hasattr(HANDLES[handle], name) or (handle, name) in instance_has


@pytest.mark.parametrize("name", sorted(set(re.findall(r"^([A-Z]\w+[a-z]\w*)", OURS, re.MULTILINE))))
def test_a_class_exists(name: str) -> None:
    assert name in pgqueue.__all__


def test_functions_and_views_exist(db: psycopg.Connection) -> None:
    promised = set(re.findall(r"\bpgqueue\.([a-z]\w+)", OURS)) - {"queue"}
    functions = "SELECT proname FROM pg_proc WHERE pronamespace = 'pgqueue'::regnamespace"
    relations = "SELECT relname FROM pg_class WHERE relkind = 'v' AND relnamespace = 'pgqueue'::regnamespace"
    found = {name for (name,) in db.execute(f"{functions} UNION ALL {relations}")}
    assert promised - found == set()
    assert len(promised) > 30


def test_arguments_of_functions_exist(db: psycopg.Connection) -> None:
    calls = re.findall(r"\bpgqueue\.([a-z]\w+)\(([^)]*=>[^)]*)\)", OURS)
    query = "SELECT proargnames FROM pg_proc WHERE proname = %s AND pronamespace = 'pgqueue'::regnamespace"
    for name, arguments in calls:
        (found,) = db.execute(query, [name]).fetchall()
        assert set(re.findall(r"(\w+) =>", arguments)) <= set(found[0]), name
    assert len(calls) > 20
