"""Graphs of tasks end as a plain model says, whatever fails and in whatever order they are handled."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

import hypothesis
import psycopg
import pytest
from hypothesis import strategies as st
from psycopg.types.json import Jsonb
from statements import rows

ENDS = ("done", "done", "done", "buried", "gone")
POLICIES = ("wait", "bury", "run")


@dataclass(frozen=True)
class Node:
    """A task: the places of those that it waits for, its policy, and how it ends if it is handled."""

    after: tuple[int, ...]
    policy: str
    end: str


def model(graph: list[Node]) -> list[str]:
    """How each task ends: done, buried, gone, or waiting for ever."""
    ends: list[str] = []
    for node in graph:
        others = {ends[place] for place in node.after}
        fatal = {"wait": {"gone"}, "bury": {"gone", "buried"}, "run": set[str]()}[node.policy]
        if others & fatal:
            ends.append("buried")
        elif "waiting" in others or ("buried" in others and node.policy == "wait"):
            ends.append("waiting")
        else:
            ends.append(node.end)
    return ends


def put(conn: psycopg.Connection, graph: list[Node], whole: bool) -> list[int]:
    """In one call, or each task in a transaction of its own."""
    if whole:
        puts = [
            {"queue": "q", "data": n, "after": [-1 - place for place in node.after], "on_failure": node.policy}
            for n, node in enumerate(graph)
        ]
        return list(rows(conn, "SELECT pgqueue.put_graph(%s, alone => true)", Jsonb(puts))[0][0])
    ids: list[int] = []
    for n, node in enumerate(graph):
        call = "SELECT id FROM pgqueue.put_flow('q', %s, after => %s::bigint[], on_failure => %s, alone => true)"
        ids.append(rows(conn, call, Jsonb(n), [ids[place] for place in node.after], node.policy)[0][0])
    return ids


def handle(conn: psycopg.Connection, graph: list[Node], chance: random.Random) -> None:
    """Take and end tasks, in a random order of those that are taken together, until no task is ready."""
    while True:
        taken = rows(conn, "SELECT id, token, data FROM pgqueue.take_many('{q}', %s)", chance.choice((1, 3, 50)))
        if not taken:
            conn.execute("SELECT pgqueue.promote_all()")
            taken = rows(conn, "SELECT id, token, data FROM pgqueue.take_many('{q}', 50)")
        if not taken:
            return
        chance.shuffle(taken)
        for id, token, n in taken:
            if graph[n].end == "done":
                conn.execute("SELECT pgqueue.ack(%s, %s)", [id, token])
            elif graph[n].end == "buried":
                conn.execute("SELECT pgqueue.bury(%s, %s, 'it failed')", [id, token])
            else:
                conn.execute("SELECT pgqueue.delete(%s)", [id])


def check(conn: psycopg.Connection, graph: list[Node], *, whole: bool, seed: int) -> None:
    ids = put(conn, graph, whole)
    handle(conn, graph, random.Random(seed))
    states = dict(rows(conn, "SELECT id, state FROM pgqueue.tasks"))
    expected = [None if end in ("done", "gone") else end for end in model(graph)]
    assert [states.get(id) for id in ids] == expected
    conn.execute("SELECT pgqueue.truncate_queue('q')")
    conn.execute("SELECT pgqueue.promote_all()")
    conn.execute("SELECT pgqueue.promote_all()")
    for table in ("dependant", "dependency", "flow_check"):
        assert rows(conn, f"SELECT * FROM pgqueue.{table}") == [], table


@pytest.fixture(scope="module")
def conn(shared: str) -> Iterator[psycopg.Connection]:
    """One database for all examples: each leaves it empty."""
    with psycopg.connect(shared, autocommit=True) as made:
        yield made


@st.composite
def graphs(draw: st.DrawFn) -> list[Node]:
    number = draw(st.integers(1, 10))
    return [
        Node(
            tuple(sorted(draw(st.sets(st.integers(0, n - 1), max_size=3)))) if n else (),
            draw(st.sampled_from(POLICIES)),
            draw(st.sampled_from(ENDS)),
        )
        for n in range(number)
    ]


@pytest.mark.slow
@hypothesis.settings(max_examples=30)
@hypothesis.given(graph=graphs(), whole=st.booleans(), seed=st.integers(0, 9))
def test_small_graphs(conn: psycopg.Connection, graph: list[Node], whole: bool, seed: int) -> None:
    conn.execute("DELETE FROM pgqueue.task")  # what a failed example left
    check(conn, graph, whole=whole, seed=seed)


def large(chance: random.Random) -> list[Node]:
    """1,000 tasks: a diamond, a fan-out of 100 and the fan-in after it, chains, and random edges; some fail."""

    def node(*after: int, safe: bool = False) -> Node:
        return Node(after, chance.choice(POLICIES), "done" if safe else chance.choice(("done",) * 12 + ENDS))

    graph = [node(safe=True), node(0, safe=True), node(0, safe=True), node(1, 2, safe=True)]
    graph += [node(3) for _ in range(100)]
    graph.append(node(*range(4, 104)))
    for _ in range(10):
        graph.append(node(3))
        graph += [node(len(graph) + n - 1) for n in range(20)]
    while len(graph) < 1000:
        graph.append(node(*chance.sample(range(len(graph)), chance.choice((0, 1, 2, 5)))))
    return graph


@pytest.mark.slow
@pytest.mark.parametrize("whole", [True, False])
def test_a_graph_of_a_thousand_tasks(conn: psycopg.Connection, whole: bool) -> None:
    graph = large(random.Random(13))
    assert {"done", "buried", "gone", "waiting"} <= set(model(graph))
    check(conn, graph, whole=whole, seed=13)
