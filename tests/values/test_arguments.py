"""Checks of arguments: what passes, and that each refusal says which argument is wrong. No database."""

from __future__ import annotations

import math
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest

from pgqueue._engine.core import Settings
from pgqueue._values import arguments
from pgqueue.errors import TaskIdRequired

NAN, INF = math.nan, math.inf


@pytest.mark.parametrize(("value", "seconds"), [(None, None), (0, 0.0), (1, 1.0), (0.5, 0.5), (Fraction(1, 2), 0.5)])
def test_seconds(value: Any, seconds: float | None) -> None:
    assert arguments.seconds("delay", value) == seconds


@pytest.mark.parametrize("value", [-1, -0.001, NAN, INF, -INF, "1", b"1", True, [], 1e10, 1j, Decimal(1)])
def test_no_seconds(value: Any) -> None:
    with pytest.raises(ValueError, match="delay must be"):
        arguments.seconds("delay", value)


def test_seconds_above_0() -> None:
    assert arguments.seconds("ttr", 0.001, positive=True) == 0.001
    with pytest.raises(ValueError, match="ttr must be over 0"):
        arguments.seconds("ttr", 0, positive=True)


@pytest.mark.parametrize(
    ("value", "timeout"), [(None, None), (INF, None), (0, 0.0), (-5, 0.0), (-INF, 0.0), (1e99, 1e99)]
)
def test_a_timeout_may_have_any_size(value: Any, timeout: float | None) -> None:
    assert arguments.timeout(value) == timeout


@pytest.mark.parametrize("value", [NAN, "1", True, []])
def test_no_timeout(value: Any) -> None:
    with pytest.raises(ValueError, match="timeout must be"):
        arguments.timeout(value)


@pytest.mark.parametrize("value", [None, 0, -(2**31), 2**31 - 1])
def test_a_priority(value: int | None) -> None:
    assert arguments.integer("priority", value) == value


@pytest.mark.parametrize("value", [2**31, -(2**31) - 1, 1.0, "1", True, NAN])
def test_no_priority(value: Any) -> None:
    with pytest.raises(ValueError, match="priority must be a whole number from -2147483648 to 2147483647"):
        arguments.integer("priority", value)


@pytest.mark.parametrize("value", [0, -1, None, 1.5, "1", True, 2**31])
def test_no_count(value: Any) -> None:
    assert arguments.count("n", 1) == 1
    with pytest.raises(ValueError, match="n must be a whole number from 1"):
        arguments.count("n", value)


@pytest.mark.parametrize("value", [1, "1", "001", 2**63 - 1, str(2**63 - 1)])
def test_a_task_id(value: Any) -> None:
    assert arguments.task_id(value) == int(value)


@pytest.mark.parametrize(
    "value", [None, "x", 1.5, True, "", "-1", "+1", " 1", "1 ", "1_0", "\u0661", 0, -1, 2**63, "9" * 19, b"1"]
)
def test_no_task_id(value: Any) -> None:
    with pytest.raises(TaskIdRequired, match="a task id is") as raised:
        arguments.task_id(value)
    assert isinstance(raised.value, ValueError)


@pytest.mark.parametrize("value", ["a", "q" * 200, "ü" * 200, " ", "\n", 'a"b'])
def test_a_queues_name(value: str) -> None:
    assert arguments.queue_name(value) == value


@pytest.mark.parametrize("value", ["", "q" * 201, "a\0b", None, 1, b"q", ["q"]])
def test_no_queues_name(value: Any) -> None:
    with pytest.raises(ValueError, match="queue's name"):
        arguments.queue_name(value)


def test_names_are_distinct_and_in_their_order() -> None:
    assert arguments.queue_names(["b", "a", "b"]) == ["b", "a"]
    assert arguments.queue_names(name for name in ("x", "y")) == ["x", "y"]  # type: ignore[arg-type]


@pytest.mark.parametrize("value", ["q", [], (), ["q", ""]])
def test_no_names(value: Any) -> None:
    with pytest.raises(ValueError, match="queue"):
        arguments.queue_names(value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("pool_size", 0),
        ("pool_size", 1.5),
        ("connect_timeout", 0),
        ("connect_timeout", "10"),
        ("session_grace", -1),
        ("poll", 0),
        ("idle_timeout", NAN),
        ("max_data_size", 0),
    ],
)
def test_settings_are_checked_when_they_are_made(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=name):
        Settings.of(**{name: value})


def test_settings_at_the_edge() -> None:
    settings = Settings.of(poll=None, session_grace=0, idle_timeout=0, pool_size=1, max_data_size=1)
    assert (settings.poll, settings.session_grace) == (None, 0)
