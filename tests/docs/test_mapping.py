"""The documentation names methods, and docs/guides/mapping.md also classes and SQL functions: each of them exists."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path

import psycopg
import pytest
from checkout import CHECKOUT

import pgqueue
from pgqueue import Claim, Client, Queue, Task, WatchList, types
from pgqueue._values.arguments import MAX_INT, MAX_SECONDS

TEXT = (CHECKOUT / "docs" / "guides" / "mapping.md").read_text("utf-8")
CELLS = [line.split(" | ")[1:] for line in TEXT.splitlines() if line.startswith("| ")]  # not the original's
OURS = "\n".join("\n".join(re.findall(r"`([^`]+)`", cell)) for cells in CELLS for cell in cells)
FAMILIES = {
    "client.nodes": types.Nodes,
    "client.audit": types.Audit,
    "client.privileges": types.Privileges,
    "client.groups": types.Groups,
    "client.exchanges": types.Exchanges,
    "client.schedules": types.Schedules,
    "client.batches": types.Batches,
    "client.limits": types.Limits,
    "client.statuses": types.Statuses,
    "client.results": types.Results,
    "queue.messages": types.Messages,
}
HANDLES: dict[str, type] = {
    "client": Client,
    "queue": Queue,
    "task": Task,
    "claim": Claim,
    "watched": WatchList,
    **FAMILIES,
}


def pair(name: str) -> tuple[str, str]:
    handle, _, attribute = name.rpartition(".")
    return handle, attribute


INSTANCES_HAVE = {("queue", "name"), ("client", "jobs"), ("client", "middleware"), *map(pair, FAMILIES)}
GUIDES = (page for page in CHECKOUT.glob("docs/guides/*.md") if not page.name.startswith(("mapping", "from-")))
PAGES = [CHECKOUT / "README.md", *sorted(GUIDES), *sorted(CHECKOUT.glob("docs/*.md"))]


def handles(text: str) -> list[tuple[str, str]]:
    """Each name after a handle: of `client.nodes.get` both (client, nodes) and (client.nodes, get)."""
    names = "|".join(sorted(map(re.escape, HANDLES), key=len, reverse=True))
    found: list[tuple[str, str]] = re.findall(rf"(?<![\w./])({names})\.([a-z]\w*)", text)
    return sorted({*found, *(pair(handle) for handle, _ in found if handle in FAMILIES)})


def spans(page: Path) -> str:
    """The code within the sentences of a page."""
    return "\n".join(re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.M | re.S)))


def exists(handle: str, name: str) -> bool:
    return hasattr(HANDLES[handle], name) or (handle, name) in INSTANCES_HAVE


@pytest.mark.parametrize(("handle", "name"), handles(OURS))
def test_a_method_exists(handle: str, name: str) -> None:
    assert exists(handle, name)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_methods_that_a_page_names_exist(page: Path) -> None:
    columns = {("queue", name) for name in ("special", "flows")} | {("task", name) for name in ("followed", "meter")}
    assert [name for name in handles(spans(page)) if not exists(*name) and name not in columns] == []


@pytest.mark.parametrize("name", sorted(set(re.findall(r"^([A-Z]\w+[a-z]\w*)", OURS, re.MULTILINE))))
def test_a_class_exists(name: str) -> None:
    assert name in {*pgqueue.__all__, *vars(pgqueue.errors), *vars(types)}


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


def test_the_limits_that_the_rows_name() -> None:
    assert (-MAX_INT - 1, MAX_INT, MAX_SECONDS) == (-2147483648, 2147483647, 1e9)
    for words in ("-2147483648 to 2147483647", "10^9 seconds, about 31 years", "uint32"):
        assert words in TEXT
    assert timedelta(seconds=MAX_SECONDS) // timedelta(days=365.25) == 31
