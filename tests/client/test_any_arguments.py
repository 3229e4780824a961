"""The client's main verbs with any arguments: an error is one of pgqueue's, a ValueError or a TypeError."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import hypothesis
import psycopg
import pytest
from hostile import STRINGS
from hypothesis import settings
from hypothesis import strategies as st

import pgqueue
from pgqueue.errors import Error

EXAMPLES = 1500

TEXTS = ["", "q", "k", "e", "/", "/a", "/a/b", "x" * 201, "x" * 256, "/" + "x" * 1024, "a\0b", "\ud800", "*.#", "a/#"]
NUMBERS = [None, True, 0, -1, 1, 5, 2**31 - 1, 2**31, -(2**31) - 1, 2**63, 0.5, 1e9, 1e10, -1e-9, 1e308, 1e-320]
VALUES = [
    *(*NUMBERS, *TEXTS, *STRINGS.values(), math.nan, math.inf, -math.inf, b"x", object(), {}, [], set(), (), 1j),
    *(
        [1, "a", None],
        ["q", None],
        {"a": [1.5, {"b": None}]},
        {1: 2},
        [[1], [2]],
        "ignore",
        "replace",
        "error",
        "topic",
    ),
    *(timedelta(days=1), timedelta(days=-1), timedelta.max, datetime(1, 1, 1, tzinfo=UTC), datetime(2030, 1, 1)),
    *(datetime.max.replace(tzinfo=UTC), UUID(int=0), "0" * 32, "ready", "taken", "done", "mqtt"),
]
ANYTHING = st.one_of(
    st.sampled_from([1, 2, "k", "/a", "topic"]),
    st.sampled_from(VALUES),
    st.text(max_size=20),
    st.integers(),
    st.floats(),
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(max_size=5), lambda inner: st.lists(inner, max_size=3)
    ),
)
OPTIONS = ("priority", "delay", "ttr", "ttl", "lane", "key", "if_exists", "sender", "run_at", "unique_for")

# The verb, how many arguments it has at most, and its keywords. The first argument of a queue's verb is the queue.
Verb = tuple[Callable[..., Any], int, tuple[str, ...]]
VERBS: list[Verb] = [
    (lambda c, q, *a, **k: c.queue(q).put(*a, **k), 2, OPTIONS),
    (lambda c, q, *a, **k: c.queue(q).put_many(*a, **k), 2, OPTIONS),
    (lambda c, q, *a, **k: c.queue(q).take(0, *a, **k), 1, ()),
    (lambda c, q, *a, **k: c.queue(q).take_many(*a, timeout=0, **k), 2, ()),
    (lambda c, q, *a, **k: c.queue(q).pop(*a, **k), 2, ()),
    (lambda c, q, *a, **k: c.queue(q).ack(*a, **k), 2, ()),
    (lambda c, q, *a, **k: c.queue(q).release(*a, **k), 2, ("delay", "error", "priority", "every")),
    (lambda c, q, *a, **k: c.queue(q).bury(*a, **k), 2, ("error", "priority")),
    (lambda c, q, *a, **k: c.queue(q).kick(*a, **k), 2, ("delayed",)),
    (lambda c, q, *a, **k: c.queue(q).peek(*a, **k), 2, ()),
    (lambda c, q, *a, **k: c.queue(q).peek_next(*a, **k), 2, ()),
    (lambda c, q, *a, **k: c.queue(q).pause(*a, **k), 2, ()),
    (
        lambda c, *a, **k: c.create_queue(*a, **k),
        1,
        ("ttr", "ttl", "maxlen", "capacity", "max_size", "type", "metadata"),
    ),
    (lambda c, *a, **k: c.statuses.set(*a, **k), 2, ("ttl",)),
    (lambda c, *a, **k: c.statuses.get(*a, **k), 1, ()),
    (lambda c, *a, **k: c.schedules.set(*a, **k), 4, ("every", "tz", "missed", *OPTIONS[:7])),
    (lambda c, *a, **k: c.schedules.next(*a, **k), 2, ()),
    (lambda c, *a, **k: c.schedules.pause(*a, **k), 1, ()),
    (lambda c, *a, **k: c.nodes.create(*a, **k), 2, ("ephemeral", "sequential")),
    (lambda c, *a, **k: c.nodes.set(*a, **k), 3, ()),
    (lambda c, *a, **k: c.nodes.get(*a, **k), 1, ()),
    (lambda c, *a, **k: c.nodes.children(*a, **k), 1, ()),
    (lambda c, *a, **k: c.exchanges.declare(*a, **k), 2, ("durable",)),
    (lambda c, *a, **k: c.exchanges.bind(*a, **k), 3, ()),
    (lambda c, *a, **k: c.exchanges.publish(*a, **k), 3, ("priority", "delay", "ttl", "retain", "run_at")),
    (lambda c, *a, **k: c.post(*a, **k), 2, ()),
    (lambda c, *a, **k: c.results.outcome(*a, **k), 1, ()),
]


@st.composite
def calls(draw: st.DrawFn) -> tuple[int, list[Any], dict[str, Any]]:
    """A verb by its place, its arguments, and some of its keywords. The first argument is a name, most of the time."""
    place = draw(st.integers(0, len(VERBS) - 1))
    _, most, keywords = VERBS[place]
    first = draw(st.one_of(st.sampled_from(["q", "e", "/a"]), ANYTHING))
    rest = [draw(ANYTHING) for _ in range(most - 1)]
    chosen = draw(st.lists(st.sampled_from(keywords), max_size=3, unique=True)) if keywords else []
    return place, [first, *rest], {name: draw(ANYTHING) for name in chosen}


def drawn() -> list[tuple[int, list[Any], dict[str, Any]]]:
    """EXAMPLES calls, the same each time. None is made yet: hypothesis refuses threads that use `random`."""
    found = []

    @settings(max_examples=EXAMPLES, derandomize=True, database=None, phases=[hypothesis.Phase.generate])
    @hypothesis.given(calls())
    def draw(call: tuple[int, list[Any], dict[str, Any]]) -> None:
        found.append(call)

    draw()
    return found


@pytest.mark.slow
@pytest.mark.once
def test_any_arguments(dsn: str, db: psycopg.Connection) -> None:
    passed, unexpected = set(), []
    with pgqueue.Client(dsn, poll=None) as client:
        client.exchanges.declare("e", "topic")
        client.nodes.create("/a")
        for place, given, keywords in drawn():
            try:
                VERBS[place][0](client, *given, **keywords)
                passed.add(place)
            except (Error, ValueError, TypeError):
                pass
            except Exception as error:
                unexpected.append((place, given, keywords, error))
        assert unexpected == []
        assert client.queue("another").put(1).id  # the client goes on, and reads what it stored
        for queue in client.queues():
            while client.queue(queue.name).take_many(100, 0):
                pass
    assert len(passed) > len(VERBS) / 2  # not all of them are refused
    # How many depends on the draws, and these on the constants in the library's code.
    assert db.execute("SELECT count(*) FROM pgqueue.tasks").fetchall() > [(1,)]
