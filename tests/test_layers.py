"""Imports go downward only: each module may import those above it in this list, and none below."""

import ast
from pathlib import Path

import pytest

import pgqueue

HOME = Path(pgqueue.__path__[0])

LAYERS = [
    ["errors"],
    ["arguments", "data", "schema", "cursor", "forks", "ticks", "ranges"],
    ["calls", "hub", "migrate", "embedded", "direct"],
    ["switchboard", "asked"],
    ["task", "puts", "dsn", "listener"],
    ["core"],
    ["borrowed"],
    ["flows", "connections", "base"],
    ["waits", "shell"],
    ["room"],
    ["ephemeral"],
    ["channels", "locks", "nodes", "routing", "statuses", "changes", "claims"],
    ["outcomes", "handing", "management", "picking"],
    ["queues"],
    ["aqueues"],
    ["client"],
    ["aclient"],
    ["worker", "shards", "watchlist", "monitors"],
    ["demo"],
    ["__init__"],
    ["cli"],
    ["contrib"],
    ["__main__"],
]
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}

# A queue names its client, a client makes its mirror, and the demo's worker processes are an application like any
# other.
UPWARD = {("queues", "client"), ("aqueues", "aclient"), ("client", "aclient"), ("demo", "__init__")}


def module_of(path):
    return path.relative_to(HOME).with_suffix("").parts[0]


def imported(path):
    """The modules of pgqueue that a file imports, as names in LEVEL."""
    package = ("pgqueue", *path.relative_to(HOME).parent.parts)
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            target = (*base, *(node.module.split(".") if node.module else ()))
            names = [(*target, alias.name) for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [tuple(alias.name.split(".")) for alias in node.names]
        else:
            continue
        for name in names:
            if name[0] == "pgqueue":
                yield name[1] if len(name) > 1 and name[1] in LEVEL else "__init__"


FILES = sorted(path for path in HOME.rglob("*.py") if "migrations" not in path.parts)


def test_every_module_has_its_place():
    assert {module_of(path) for path in FILES} == set(LEVEL)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(HOME)))
def test_imports_go_downward(path):
    own = module_of(path)
    upward = {other for other in imported(path) if other != own and LEVEL[other] >= LEVEL[own]}
    assert {other for other in upward if (own, other) not in UPWARD} == set()
