"""No thread and no asyncio task of the package begins without an owner (pgqueue/_engine/owners.py)."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import pgqueue

HOME = Path(pgqueue.__path__[0])

BEGINNINGS = {
    *("Thread", "Timer", "Process", "start_new_thread"),
    *("create_task", "ensure_future", "Task", "TaskGroup", "ThreadPoolExecutor"),
}
MODULES = {"threading", "asyncio", "loop", "_loop", "get_event_loop", "get_running_loop", "get_loop", "futures"}

#: What begins a thread or a task by itself, and why it may.
ALLOWED = {
    "_engine/owners.py": "the owners themselves",
    "_engine/awaiting.py: uninterrupted": "the caller awaits the task, and gets its error",
    "_engine/pools.py: _getconn": "the caller awaits the task; if it is cancelled, another one ends with the first",
    "_engine/pools.py: _give_way_soon": "it closes idle connections; if it fails, the next refusal asks for it again",
    "_engine/shielded.py: shielded": "the caller waits for the thread, and gets its error unless it is interrupted",
    "_engine/outages.py: connected": "the caller gets its error, or else the core and the server keep it",
    "_engine/primaries.py: chosen": "the caller waits for the threads, each of which ends in a bounded time",
    "worker/loops.py: _main": "the loop's thread, which is owned, runs until the task has ended, and raises its error",
    "worker/loops.py: _go_on": "a run: its place looks at its end, by a callback, and begins the next one",
    "beanstalkd/connection.py: _wait_for_job": "the caller awaits the task, and gets its error",
    "beanstalkd/server.py: ": "a connection: it logs what ends it, and gives back its jobs",
    "cli/holding.py: lose": "kills a command whose lock is lost; the command line waits for the command",
    "contrib/django/working.py: run": "each worker's end stops the others, and the main thread raises its error",
    "cli/dashboard.py: serve": "the end of the thread ends the command, which raises its error",
    "dashboard/live.py: _go_on": "each browser begins it again, after ten seconds at the latest",
    "dashboard/reading.py: __call__": "all that ask await the task, and get its error",
    "demo/": "an application that shows pgqueue to its user",
}


def beginnings(path: Path) -> Iterator[str]:
    """Where a file begins a thread or a task: `file: function`."""
    tree = ast.parse(path.read_text("utf-8"))
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            for node in ast.walk(function):
                if isinstance(node, ast.Call) and begins(node.func):
                    yield f"{path.relative_to(HOME).as_posix()}: {function.name}"


def begins(called: ast.expr) -> bool:
    if isinstance(called, ast.Name):
        return called.id in BEGINNINGS - {"Task"}  # a Task by itself is pgqueue's
    if not isinstance(called, ast.Attribute) or called.attr not in BEGINNINGS:
        return False
    of = called.value.func if isinstance(called.value, ast.Call) else called.value
    return (of.attr if isinstance(of, ast.Attribute) else getattr(of, "id", "")) in MODULES


@pytest.mark.slow
def test_every_thread_and_task_has_an_owner() -> None:
    found = {place for path in HOME.rglob("*.py") for place in beginnings(path)}
    assert found, "the scan finds nothing"
    used = {place: next((key for key in ALLOWED if place.startswith(key)), None) for place in found}
    assert sorted(place for place, key in used.items() if key is None) == []
    assert set(ALLOWED) - set(used.values()) == set(), "an exception that nothing needs"
