"""Pauses that follow an outage of the server are computed in one place, pgqueue/_engine/outages.py."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import pgqueue

HOME = Path(pgqueue.__path__[0])

#: Where else something doubles up to a bound, or is random, and what it follows. None of it follows an outage.
ALLOWED = {
    "_engine/outages.py": "the place itself",
    "_engine/clock.py: _note": "another clock fires the schedule, or its put was refused: the server answered",
    "_engine/jobs.py: answered": "the claim that is undone is under way: the server answered",
    "_engine/hub.py: _drained": "a producer's open transaction holds up the drain",
    "_engine/looks.py: poll": "as the hub's drain, of one waiter",
    "_engine/takes.py: _last_look": "an open transaction has a ready task locked",
    "_engine/ticks.py": "the clients spread their ticks",
    "worker/settler.py: _some_failures": "no pause: how many failures are sent at once",
    "worker/spread.py": "the workers of a cluster spread their reads of one list",
    "worker/newer.py": "the task's job is of newer code: it waits for another worker",
    "monitors/reasons.py: _more": "no pause: the capacity that a button offers",
    "contrib/celery/results.py: _store": "no pause: a part of the stores remove what has expired",
    "jobs/retry.py": "the delay of a task that failed, which its job chose",
}


def growing(tree: ast.AST) -> bool:
    """Whether something is doubled up to a bound, a random number between bounds is drawn, or a flow waits so long."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return any(doubles(call) or draws(call) or is_fixed(call) for call in calls)


def is_fixed(call: ast.Call) -> bool:
    """Whether a flow waits for a number of seconds that is written there."""
    named = isinstance(call.func, ast.Name) and call.func.id == "Wait"
    return named and any(isinstance(arg, ast.Constant) and arg.value is not None for arg in call.args)


def doubles(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Name) and call.func.id == "min" and any(map(is_twice, call.args))


def is_twice(value: ast.expr) -> bool:
    if not isinstance(value, ast.BinOp) or not isinstance(value.op, ast.Mult):
        return False
    return any(isinstance(side, ast.Constant) and side.value == 2 for side in (value.left, value.right))


def draws(call: ast.Call) -> bool:
    function = call.func
    return (
        isinstance(function, ast.Attribute)
        and isinstance(function.value, ast.Name)
        and (function.value.id, function.attr) in {("random", "uniform"), ("random", "random")}
    )


def places() -> Iterator[str]:
    for path in HOME.rglob("*.py"):
        for function in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef) and growing(function):
                yield f"{path.relative_to(HOME).as_posix()}: {function.name}"


@pytest.mark.slow
def test_a_pause_that_follows_an_outage_is_computed_in_one_place() -> None:
    used = {place: next((key for key in ALLOWED if place.startswith(key)), None) for place in places()}
    assert sorted(place for place, key in used.items() if key is None) == []
    assert set(ALLOWED) - set(used.values()) == set(), "an exception that nothing needs"


@pytest.mark.parametrize(
    "code",
    [
        "pause = min(pause * 2, 30)",
        "self.pause = min(2 * self.pause, LONGEST)",
        "sleep(random.uniform(0, 1))",
        "Wait(signal, 0.05)",
    ],
)
def test_the_rule_finds_a_pause_that_grows(code: str) -> None:
    assert growing(ast.parse(code))
    assert not growing(ast.parse("size = min(n, 2); Wait(signal, None)"))
