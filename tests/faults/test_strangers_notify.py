"""Notifications are hints: what a role that may only connect sends changes nothing, on any channel."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import random
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from eventually import eventually
from statements import rows, value

import pgqueue
from pgqueue._engine import direct, posts
from pgqueue.errors import ClosedError
from pgqueue.types import Change

Connect = Callable[..., psycopg.Connection]
PAYLOADS = 100_000
BATCH = 2_000
MARK = "\x01pgqueue:"


def md5(text: str) -> str:
    return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()


def until_closed(work: Callable[[], None]) -> None:
    with contextlib.suppress(ClosedError):
        work()


class Victim:
    """A client that holds one of everything that hangs on its listener's connection, or hears by it."""

    def __init__(self, client: pgqueue.Client, db: psycopg.Connection) -> None:
        self.client, self.db = client, db
        self.changes: list[Change] = []
        self.terms: list[str] = []
        self.events: list[Any] = []
        self.heard: list[str] = []
        self.queue = client.queue("q")
        self.queue.put("held")
        held = self.queue.take(0)
        assert held is not None
        self.task = held
        self.queue.on_task_change(self.changes.append)
        self.lock = client.lock("section", 5)
        self.lock.__enter__()
        self.election = client.elect("boss", lambda _: self.terms.append("gained"), lambda _: self.terms.append("lost"))
        eventually(lambda: self.election.leader)
        client.nodes.create("/watched")
        self.watch = client.nodes.watch("/watched")
        self.subscription = client.subscribe("news", buffer=PAYLOADS)
        self.threads = [
            threading.Thread(target=until_closed, args=[work], daemon=True)
            for work in (self._wait_for_event, self._hear, self._wait_for_status, self._wait_for_task)
        ]
        for thread in self.threads:
            thread.start()
        self.session = client.shell.core.listener().session
        eventually(lambda: self.backend() and value(db, "SELECT pgqueue._is_awaited(1)"))
        self.first = self.backend()
        self.id = int(value(db, "SELECT id FROM pgqueue.queue"))

    def backend(self) -> int:
        return int(value(self.db, "SELECT backend_pid FROM pgqueue.session WHERE id = %s", self.session))

    def _wait_for_event(self) -> None:
        self.events.append(self.watch.wait(60).kind)

    def _hear(self) -> None:
        for payload in self.subscription:
            self.heard.append(payload)

    def _wait_for_status(self) -> None:
        self.events.append(self.client.statuses.wait("key", "done", 60))

    def _wait_for_task(self) -> None:
        task = self.client.queue("q").take(60)
        self.events.append(task and task.data)

    def channels(self) -> list[str]:
        """Every channel of this client whose name a stranger can guess, and those that it would like to guess."""
        others = [f"pgqueue:change:{self.id}", f"pgqueue:node:{md5('/watched')}", f"pgqueue:change:{md5(str(self.id))}"]
        return [
            *(f"pgqueue:{self.id}", f"pgqueue:-{self.id}", f"pgqueue:lock:{self.session}"),
            f"pgqueue:call:{self.session}",
            *(f"pgqueue:status:{md5('key')}", f"pgqueue:task:{self.task.id}", "news", *others),
        ]

    def check(self) -> None:
        """Nothing was lost, and nothing was believed."""
        assert self.backend() == self.first
        assert self.terms == ["gained"]
        assert self.events == []
        self.lock.check()
        assert self.election.leader
        assert self.changes == []
        assert rows(self.db, "SELECT id, session_id FROM pgqueue.take JOIN pgqueue.task ON id = task_id") == [
            (self.task.id, self.session)
        ]

    def check_that_it_hears(self) -> None:
        """The real thing still arrives on each channel."""
        self.client.nodes.set("/watched", 1)
        self.client.statuses.set("key", "done")
        self.client.queue("q").put("new")
        eventually(lambda: sorted(map(str, self.events)) == ["changed", "done", "new"])
        eventually(lambda: [change.op for change in self.changes] == ["put", "take"])
        self.client.post("news", "the last")
        eventually(lambda: self.heard[-1:] == ["the last"])
        self.task.ack()
        self.lock.release()
        self.election.close()


@pytest.fixture
def victim(blocking: Callable[..., pgqueue.Client], db: psycopg.Connection) -> Victim:
    return Victim(blocking(session_grace=0), db)


@pytest.fixture
def no_exceptions(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    caplog.set_level(logging.DEBUG, "pgqueue")
    yield
    assert [r.getMessage() for r in caplog.records if r.exc_info or r.levelno >= logging.ERROR] == []


def payload(chance: random.Random, victim: Victim) -> str:
    """Garbage, and what resembles a payload of ours."""
    number = chance.choice(["1", "0", "-1", "9" * 19, "9" * 20, "9" * 5000, "٣", "1e9", " 1", "", str(2**63 - 1)])
    text = "".join(chance.choices("abc ,:;\n\t\x01\x1b\u202eé\U0001f600{}'\"\\", k=chance.randrange(8)))
    moment = chance.choice(["0", "1700000000.123456", "1e400", "nan", "9" * 30])
    return chance.choice(
        [
            *(text, number, MARK + number, MARK + text, f"{MARK}{number}{text}"),
            *(f"put {moment} {number}", f"take {moment} {victim.task.id}", f"delete {moment} {number},{text}"),
            *(f"changed {number}", f"deleted {2**62}", f"children {number}", f"created {text}"),
            *(str(chance.getrandbits(63)), f"{text} {text} {text}"),
        ]
    )


@pytest.mark.slow
@pytest.mark.usefixtures("no_exceptions")
def test_a_flood_of_random_payloads_changes_nothing(
    victim: Victim, stranger: Connect, record_property: Callable[[str, object], None]
) -> None:
    seed = 20240607
    chance, channels = random.Random(seed), victim.channels()
    began = time.monotonic()
    with stranger() as conn:
        for _ in range(PAYLOADS // BATCH):
            lines = [(chance.choice(channels), payload(chance, victim)) for _ in range(BATCH)]
            names, texts = [name for name, _ in lines], [text for _, text in lines]
            conn.execute("SELECT count(pg_notify(c, p)) FROM unnest(%s::text[], %s::text[]) u(c, p)", [names, texts])
    victim.check()
    victim.check_that_it_hears()
    assert victim.backend() == victim.first
    text = f"{PAYLOADS} payloads in {time.monotonic() - began:.1f} s, seed {seed}"
    record_property("flood", text)
    print(text)


@pytest.mark.parametrize(
    ("channel", "hostile"),
    [
        ("pgqueue:change:{id}", "garbage"),
        ("pgqueue:change:{id}", "put 1700000000.5 77"),
        ("pgqueue:node:{node}", "deleted 4611686018427387904"),
        ("pgqueue:node:{node}", "changed " + "9" * 5000),
        ("pgqueue:lock:{session}", "9" * 5000),
        ("pgqueue:status:{key}", MARK + "9" * 20),
        ("pgqueue:task:{task}", MARK + "9" * 5000),
        ("pgqueue:{id}", "x" * 7000),
        ("pgqueue:{id}", "come"),
        ("pgqueue:call:{session}", "1 1.5"),
        ("pgqueue:call:{session}", "9" * 5000),
        ("pgqueue:-{id}", "9" * 20),
        ("news", MARK + "9" * 5000),
        ("news", MARK + "9" * 20),
        ("news", MARK + "99"),
        ("news", MARK + "٣"),
    ],
)
@pytest.mark.usefixtures("no_exceptions")
def test_a_hostile_payload_changes_nothing(victim: Victim, stranger: Connect, channel: str, hostile: str) -> None:
    name = channel.format(
        id=victim.id, session=victim.session, task=victim.task.id, node=md5("/watched"), key=md5("key")
    )
    with stranger() as conn:
        for _ in range(40):
            conn.execute("SELECT pg_notify(%s, %s)", [name, hostile])
    victim.client.post("news", "marker")
    eventually(lambda: "marker" in victim.heard)
    victim.check()
    victim.check_that_it_hears()
    assert victim.backend() == victim.first


def test_what_has_the_mark_and_no_id_is_delivered_as_it_stands(
    blocking: Callable[..., pgqueue.Client], stranger: Connect
) -> None:
    """As a NOTIFY from psql is. What names a payload that is not there is dropped, and leaves one gap."""
    client = blocking()
    gaps: list[str] = []
    subscription = client.subscribe("news", on_gap=gaps.append)
    texts = [MARK + "9" * 20, MARK + "0", MARK, MARK + "٣", MARK + "-1", MARK + "1 "]
    with stranger() as conn:
        for text in texts:
            conn.execute("SELECT pg_notify('news', %s)", [text])
        for id in range(1, 20):
            conn.execute("SELECT pg_notify('news', %s)", [MARK + str(id)])
        conn.execute("NOTIFY news, 'the last'")
    assert [subscription.get(30) for _ in range(len(texts) + 1)] == [*texts, "the last"]
    assert set(gaps) <= {"a large payload was fetched too late"}
    assert 1 <= len(gaps) <= 19


def test_a_stranger_cannot_learn_the_channels_that_carry_facts(victim: Victim, stranger: Connect) -> None:
    secret = value(victim.db, "SELECT value FROM pgqueue.secret")
    with stranger() as conn:
        for query in (
            "SELECT value FROM pgqueue.secret",
            "SELECT pgqueue.watch_node('/watched')",
            f"SELECT pgqueue.observe({victim.id})",
            "SELECT pgqueue._node_channel('/watched')",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                conn.execute(query)
        seen = value(
            conn, "SELECT string_agg(coalesce(query, ''), ' ') FROM pg_stat_activity WHERE pid <> pg_backend_pid()"
        )
        assert "LISTEN" not in seen
    names = [
        value(victim.db, "SELECT pgqueue.watch_node('/watched')"),
        value(victim.db, "SELECT pgqueue._change_channel(%s)", victim.id),
    ]
    for name in names:
        assert secret not in name
        assert len(name.encode()) < 64


def test_a_client_of_another_program_hears_no_forged_change(victim: Victim, connect: Connect) -> None:
    """What the channel of an observer brings, and is no change, is dropped: also for those that know its name."""
    name = value(victim.db, "SELECT pgqueue._change_channel(%s)", victim.id)
    for text in (
        "garbage",
        "put x 1",
        "put 1e400 1",
        "put 1 " + "9" * 40,
        "drop 1.0 1",
        "put 1.0 1,",
        "put " + "9" * 30 + " 1",
    ):
        victim.db.execute("SELECT pg_notify(%s, %s)", [name, text])
    victim.client.post("news", "marker")
    eventually(lambda: "marker" in victim.heard)
    victim.check()
    victim.check_that_it_hears()


def test_payloads_that_wait_for_a_locked_table_have_a_limit(
    blocking: Callable[..., pgqueue.Client], connect: Connect, db: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A payload that cannot be fetched holds up those behind it. What there is no room for is a gap in its place."""
    monkeypatch.setattr(posts, "ROOM", 10_000)
    client = blocking()
    gaps: list[str] = []
    subscription = client.subscribe("news", on_gap=gaps.append)
    other = client.subscribe("other", on_gap=gaps.append)
    waiting = client.shell.core.listener()._posts
    with connect(autocommit=False) as locker:
        locker.execute("LOCK TABLE pgqueue.payload")
        client.post("news", "first")
        assert subscription.get(30) == "first"
        db.execute("SELECT pg_notify('news', %s)", [MARK + "1"])
        for number in range(100):
            client.post("news", f"{number:0500}")
        client.post("other", "z")
        eventually(lambda: len(waiting) > 10)
        assert len(waiting) < 40
    heard = []
    while (heard or [""])[-1] != "the end":
        client.post("news", "the end")
        heard.append(subscription.get(30))
    assert len(heard) < 60
    assert gaps == ["a large payload was fetched too late", "the buffer was full"]
    with pytest.raises(TimeoutError):
        other.get(0)


def test_bytes_of_no_encoding_are_a_payload_like_any_other() -> None:
    assert direct.decoded(b"\xffa") == r"\xffa"
    assert direct.decoded("é".encode()) == "é"
