"""docs/guides/mapping.md promises names: each of them exists."""

from __future__ import annotations

import re
from pathlib import Path

import psycopg
import pytest

import pgqueue
from pgqueue import Claim, Client, Task, WatchList

TEXT = (Path(__file__).parent.parent / "docs" / "guides" / "mapping.md").read_text("utf-8")
CELLS = [line.split(" | ")[1:] for line in TEXT.splitlines() if line.startswith("| ")]  # not the original's
OURS = "\n".join("\n".join(re.findall(r"`([^`]+)`", cell)) for cells in CELLS for cell in cells)
CLIENT = Client()  # connects at its first call only
HANDLES = {
    "client": CLIENT,
    "queue": CLIENT.queue("any"),
    "task": Task,
    "claim": Claim,
    "watched": WatchList(CLIENT),
}


def chains() -> list[str]:
    """What the page names after a handle, such as `client.nodes.create`."""
    return sorted(set(re.findall(rf"\b((?:{'|'.join(HANDLES)})(?:\.[a-z]\w*)+)", OURS)) - {"queue.tube"})


@pytest.mark.parametrize("chain", chains())
def test_a_method_exists(chain: str) -> None:
    handle, *names = chain.split(".")
    found: object = HANDLES[handle]
    for name in names:
        assert hasattr(found, name)
        found = getattr(found, name)


@pytest.mark.parametrize("name", sorted(set(re.findall(r"^([A-Z]\w+[a-z]\w*)", OURS, re.MULTILINE))))
def test_a_class_exists(name: str) -> None:
    assert any(hasattr(home, name) for home in (pgqueue, pgqueue.types, pgqueue.errors))


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
