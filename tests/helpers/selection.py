"""Which tests a run has: the quick ones by default. `pytest -m slow` runs the others, `pytest --all` runs all.

A test on both shells runs once by default, on one of them; the other run is marked slow. Half of the tests run on each
shell, so the default run knows both. The blocking shell is generated from the awaiting one, and a test compares them.

A test that measures seconds is marked `timed` (stopwatches.py): `-m "slow and timed" --numprocesses=2` runs little
beside it.

A run on a second server need not repeat all that is slow: `--half=first` leaves out every other slow test in which the
server could show, and `--half=second` the others.

Any other `-m` expression chooses among all tests. A test that the command line names by its id, as in
`pytest FILE::test`, runs in any case.
"""

from __future__ import annotations

import zlib
from collections import defaultdict

import pytest
from stopwatches import measures_seconds

LEFT_OUT = pytest.StashKey[int]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("pgqueue")
    group.addoption("--all", action="store_true", help="run the slow tests too, and each test on both shells")
    group.addoption(
        "--only-pg", action="store_true", help="leave out the tests in which another PostgreSQL would not show"
    )
    group.addoption(
        "--half", choices=["first", "second"], help="of the slow tests in which the server could show, run only these"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    only_pg = config.getoption("--only-pg")
    for item in second_shells(items, "sync" if only_pg else None):
        item.add_marker("slow")
    for item in items:
        if measures_seconds(item):
            item.add_marker("timed")
    if only_pg:
        deselect(config, items, {item for item in items if not server_matters(item)})
    if half := config.getoption("--half"):
        both = {item for item in items if is_slow(item) and server_matters(item)}
        deselect(config, items, {item for item in both if half_of(item) != half})
    if not config.getoption("--all") and not config.option.markexpr:
        slow = {item for item in items if is_slow(item) and not is_named(config, item)}
        config.stash[LEFT_OUT] = len(slow)
        if hasattr(config, "workeroutput"):  # under xdist, the process that prints the summary is another one
            config.workeroutput["left_out"] = len(slow)
        deselect(config, items, slow)


def deselect(config: pytest.Config, items: list[pytest.Item], others: set[pytest.Item]) -> None:
    config.hook.pytest_deselected(items=list(others))
    items[:] = [item for item in items if item not in others]


def second_shells(items: list[pytest.Item], kept: str | None) -> list[pytest.Item]:
    """Of the items that differ by their shell alone, all but one; `kept` names the shell of that one."""
    alike = defaultdict[tuple[object, ...], dict[str, pytest.Item]](dict)
    for item in items:
        if shell := shell_of(item):
            indices = {name: index for name, index in item.callspec.indices.items() if name != "shell"}  # type: ignore[attr-defined]  # of pytest.Function
            alike[(item.nodeid.partition("[")[0], *sorted(indices.items()))][shell] = item
    seconds = list[pytest.Item]()
    for (name, *_), by_shell in alike.items():
        shells = sorted(by_shell)
        first = kept if kept in shells else shells[zlib.crc32(str(name).encode()) % len(shells)]
        seconds += [item for shell, item in by_shell.items() if shell != first]
    return seconds


def shell_of(item: pytest.Item) -> str | None:
    return item.callspec.params.get("shell") if hasattr(item, "callspec") else None


def server_matters(item: pytest.Item) -> bool:
    """Whether another version could show in a test. The awaiting shell sends just what the blocking one sends."""
    uses = "pg_server" in getattr(item, "fixturenames", ())
    return uses and shell_of(item) != "async" and item.get_closest_marker("once") is None


def is_slow(item: pytest.Item) -> bool:
    return item.get_closest_marker("slow") is not None


def half_of(item: pytest.Item) -> str:
    """By its id, so that a long table of cases is divided too."""
    return "first" if zlib.crc32(item.nodeid.encode()) % 2 else "second"


def is_named(config: pytest.Config, item: pytest.Item) -> bool:
    """Whether an argument is the test's id, with or without its parameters."""
    ids = item.nodeid, item.nodeid.partition("[")[0]
    return any("::" in arg and id.endswith(arg.rpartition("/")[2]) for arg in config.args for id in ids)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: object) -> None:
    if left_out := getattr(node, "workeroutput", {}).get("left_out"):
        node.config.stash[LEFT_OUT] = left_out  # type: ignore[attr-defined]  # xdist has no types


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if left_out := config.stash.get(LEFT_OUT, 0):
        line = f"left out: {left_out:,} tests that are slow, or that ran on the other shell; `pytest -m slow` runs them"
        terminalreporter.write_line(line)
