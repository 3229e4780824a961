"""The two shells are one interface: the same names, parameters, defaults and docstrings, except for `await`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

import pgqueue
from pgqueue import errors, types
from pgqueue.monitors.alerts import Alert, Monitor
from pgqueue.monitors.graphite import GraphiteReporter
from pgqueue.monitors.prometheus import PgqueueCollector

PUBLIC = {name: kind for module in (pgqueue, types) for name, kind in vars(module).items() if inspect.isclass(kind)}
PAIRS = [(kind, PUBLIC[f"Async{name}"]) for name, kind in PUBLIC.items() if f"Async{name}" in PUBLIC]
ONLY_BLOCKING = {"aio"}  # the way from one to the other


def public(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")}


def parameters(function: Callable[..., Any]) -> list[tuple[str, Any, Any]]:
    return [(p.name, p.kind, p.default) for p in inspect.signature(function).parameters.values()]


def test_every_awaiting_class_has_a_blocking_one() -> None:
    assert {name.removeprefix("Async") for name in PUBLIC if name.startswith("Async")} <= PUBLIC.keys()
    assert len(PAIRS) > 15


@pytest.mark.parametrize(("blocking", "awaiting"), PAIRS)
def test_same_names(blocking: type, awaiting: type) -> None:
    assert public(blocking) - public(awaiting) <= ONLY_BLOCKING
    assert public(awaiting) <= public(blocking)


@pytest.mark.parametrize(("blocking", "awaiting"), PAIRS)
def test_same_parameters_and_docstrings(blocking: type, awaiting: type) -> None:
    assert blocking.__doc__ == awaiting.__doc__
    assert parameters(blocking) == parameters(awaiting)
    for name in sorted(public(awaiting)):
        one, other = getattr(blocking, name), getattr(awaiting, name)
        if callable(one):
            assert parameters(one) == parameters(other), name
            assert one.__doc__ == other.__doc__, name


SINGLE = [pgqueue.Worker, Alert, GraphiteReporter, Monitor, PgqueueCollector]


@pytest.mark.parametrize("kind", list(PUBLIC.values()) + SINGLE)
def test_everything_public_is_explained(kind: type) -> None:
    assert kind.__doc__
    for name in sorted(public(kind)):
        member = inspect.getattr_static(kind, name)
        if callable(member) or isinstance(member, property):
            assert member.__doc__, f"{kind.__name__}.{name}"


def test_the_lists_of_names_are_sorted_and_short() -> None:
    assert pgqueue.__all__ == sorted(pgqueue.__all__)
    assert types.__all__ == sorted(types.__all__)
    assert len(pgqueue.__all__) <= 55


def test_every_error_is_public() -> None:
    found = {name for name, kind in vars(errors).items() if inspect.isclass(kind) and issubclass(kind, Exception)}
    assert found - {"SessionDead"} <= {name for name in vars(errors) if not name.startswith("_")}
    assert {name for name in pgqueue.__all__ if name in found} >= {"Error", "TakeLost", "QueueFull"}
