"""The pictures in docs/pictures. Of a task's states: each move is made, and no other move can be made."""

from __future__ import annotations

import inspect
import itertools
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import psycopg
import pytest
from statements import pass_time, put, state, take, value
from stepping import die

import pgqueue
from pgqueue._calls.find import State

PICTURES = Path(__file__).parents[2] / "docs" / "pictures"
PICTURE = ET.parse(PICTURES / "states.svg")
MOVES = {
    (move.attrib["data-from"], verb): move.attrib["data-to"]
    for move in PICTURE.iterfind(".//*[@data-by]")
    for verb in move.attrib["data-by"].split()
}
STATES = get_args(State)
#: What the lines below the picture say, and an ack of a cancelled task where done ones are kept.
SAID = {
    **dict.fromkeys(itertools.product(STATES, ["delete"]), "gone"),
    **dict.fromkeys(itertools.product(set(STATES) - {"taken", "cancelling", "done"}, ["cancel"]), "gone"),
    **dict.fromkeys(itertools.product(["ready", "blocked", "buried"], ["ttl"]), "gone"),
    ("cancelling", "ack_kept"): "done",
}
Connect = Callable[..., psycopg.Connection]


class Life:
    """A task in a queue of its own, and one that is before it: in its lane, in its limit, or as what it waits for."""

    def __init__(self, db: psycopg.Connection, taker: psycopg.Connection, queue: str) -> None:
        self.db, self.taker, self.queue = db, taker, queue
        self.id = self.token = self.before = self.before_token = 0

    def call(self, query: str, *args: Any) -> Any:
        return value(self.db, query, *args)

    # --- into a state

    def ready(self) -> None:
        self.id = put(self.db, self.queue)

    put = ready

    def put_delayed(self) -> None:
        self.id = put(self.db, self.queue, delay="1 h")

    delayed = put_delayed

    def put_lane(self) -> None:
        put(self.db, self.queue, lane="a")
        self.before, self.before_token = take(self.taker, self.queue)
        self.id = put(self.db, self.queue, lane="a")

    blocked = put_lane

    def put_after(self) -> None:
        self.before = put(self.db, self.queue)
        self.id = self.call("SELECT id FROM pgqueue.put_flow(%s, '1', after => ARRAY [%s])", self.queue, self.before)

    waiting = put_after

    def put_limited(self) -> None:
        self.call("SELECT pgqueue.create_queue(%s)", self.queue)
        self.call("SELECT pgqueue.set_limit(%s, concurrency => 1)", self.queue)
        self.ready()
        self.before, self.before_token = take(self.taker, self.queue)
        self.ready()

    def taken(self) -> None:
        self.id = put(self.db, self.queue, ttr="1 min")
        self.token = take(self.taker, self.queue)[1]

    def buried(self) -> None:
        self.taken()
        self.bury()

    def cancelling(self) -> None:
        self.taken()
        self.cancel()

    def done(self) -> None:
        self.taken()
        self.ack_kept()

    # --- and out of it, or not

    def take(self) -> None:
        self.db.execute("SELECT pgqueue.take(%s)", [self.queue])

    def ack(self) -> None:
        self.call("SELECT state FROM pgqueue.ack(%s, %s)", self.id, self.token)

    def ack_kept(self) -> None:
        self.db.execute('SELECT pgqueue.alter_queue(%s, \'{"keep_done": "1 h"}\')', [self.queue])
        self.ack()

    def release(self) -> None:
        self.call("SELECT state FROM pgqueue.release(%s, %s)", self.id, self.token)

    def release_delayed(self) -> None:
        self.call("SELECT state FROM pgqueue.release(%s, %s, delay => '1 h')", self.id, self.token)

    def bury(self) -> None:
        self.call("SELECT state FROM pgqueue.bury(%s, %s)", self.id, self.token)

    def kick(self) -> None:
        self.call("SELECT state FROM pgqueue.kick_task(%s)", self.id)

    def cancel(self) -> None:
        self.call("SELECT state FROM pgqueue.cancel(%s)", self.id)

    def delete(self) -> None:
        self.call("SELECT pgqueue.delete(%s)", self.id)

    def time(self) -> None:
        pass_time(self.db, "2 h")
        self.db.execute("UPDATE pgqueue.task SET done_at = done_at - interval '2 h'")
        self.tick()
        self.db.execute("SELECT pgqueue.clean_up()")

    def ttl(self) -> None:
        self.db.execute(
            "UPDATE pgqueue.task SET expires_at = now() WHERE id = %s AND state IN ('R', 'L', 'B')", [self.id]
        )
        self.tick()

    def death(self) -> None:
        die(self.taker, self.db)
        self.db.execute("SELECT FROM pgqueue.sweep()")
        self.tick()

    def opened(self) -> None:
        token = self.before_token or self.call("SELECT token FROM pgqueue.take_id(%s)", self.before)
        self.call("SELECT state FROM pgqueue.ack(%s, %s)", self.before, token)
        self.tick()

    def tick(self) -> None:
        for _ in range(2):  # the first may leave a check to the next
            self.db.execute("SELECT pgqueue.promote_all()")


VERBS = [
    *("take", "ack", "ack_kept", "release", "release_delayed", "bury", "kick", "cancel", "delete"),
    *("time", "ttl", "death"),
]


@pytest.fixture
def living(db: psycopg.Connection, connect: Connect) -> Callable[[str], Life]:
    def made(queue: str) -> Life:
        taker = connect()
        taker.execute("SELECT pgqueue.open_session(grace => '0')")
        return Life(db, taker, queue)

    return made


def test_the_picture_has_all_states() -> None:
    drawn = {state.attrib["data-state"] for state in PICTURE.iterfind(".//*[@data-state]")}
    assert drawn == {*STATES, "gone"}
    assert {by for _, by in MOVES} <= {*VERBS, "opened", "put", "put_delayed", "put_lane", "put_after", "put_limited"}


@pytest.mark.parametrize("how", [by for origin, by in MOVES if origin == ""])
def test_what_a_put_makes(how: str, living: Callable[[str], Life]) -> None:
    task = living("q")
    getattr(task, how)()
    assert state(task.db, task.id) == MOVES["", how]


@pytest.mark.parametrize("origin", STATES)
def test_the_moves_out_of_a_state(origin: str, living: Callable[[str], Life]) -> None:
    """Each verb in each state: it makes the move of the picture, or none."""
    for verb in VERBS + ["opened"] * (origin in ("waiting", "blocked")):
        task = living(verb)
        getattr(task, origin)()
        assert state(task.db, task.id) == origin
        getattr(task, verb)()
        expected = MOVES.get((origin, verb)) or SAID.get((origin, verb)) or origin
        assert (verb, state(task.db, task.id) or "gone") == (verb, expected)


def test_a_place_in_a_limit_that_is_free(living: Callable[[str], Life]) -> None:
    task = living("q")
    task.put_limited()
    task.opened()
    task.take()  # the claim that gives the place away also takes the task
    assert state(task.db, task.id) == MOVES[MOVES["waiting", "opened"], "take"]


@pytest.mark.once
def test_the_picture_of_the_connections_has_the_defaults() -> None:
    size = inspect.signature(pgqueue.Client).parameters["pool_size"].default
    text = (PICTURES / "connections.svg").read_text()
    assert f"grows to pool_size = {size}" in text
    most = {
        parts.attrib["data-process"]: int(parts.attrib["data-pools"]) * size + int(parts.attrib["data-listener"])
        for parts in ET.fromstring(text).iterfind(".//*[@data-pools]")
    }
    worker = 3  # docs/guides/worker.md: one for its listener, two for taking and settling
    assert f"With the defaults: {most['puts']}, {most['takes']} and {worker} connections at most" in text
    assert text.count(f">0 to {size}<") == sum(
        int(parts.attrib["data-pools"]) for parts in ET.fromstring(text).iterfind(".//*[@data-pools]")
    )
