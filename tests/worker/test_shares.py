"""No queue of a worker holds all runners, so whatever the tasks of one queue do, those of another one begin."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from types import SimpleNamespace
from typing import Any

import pytest
from eventually import eventually
from running import running

import pgqueue
from pgqueue import Worker
from pgqueue._calls.take import Taken
from pgqueue.worker import children
from pgqueue.worker import shares as sharing
from pgqueue.worker.buffer import STALE, Buffer, Wanted
from pgqueue.worker.shares import Shares, read

pytestmark = pytest.mark.once

LONG = 30.0  # seconds: longer than a test


@pytest.fixture(autouse=True)
def keeping(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two runners are enough to show what is the same with any number."""
    monkeypatch.setattr(sharing, "KEEPING", 2)


# --- who may start what


def shared(n: int, queues: str = "abc", given: Mapping[str, int] | None = None) -> Shares:
    return Shares(n, list(queues), given or {})


def hold(shares: Shares, queues: str) -> None:
    """Runners begin with tasks of these queues, one after another."""
    for number, queue in enumerate(queues):
        assert shares.may_start(queue)
        shares.hold(number, queue)


def test_of_few_runners_none_is_kept(monkeypatch):
    monkeypatch.undo()
    for n in (2, 3):
        shares = shared(n, "ab")
        assert shares.room(["a", "b"], n, []) == {"a": n, "b": n}
        hold(shares, "a" * n)
    few = shared(4, "ab")
    hold(few, "aaa")
    assert not few.may_start("a")


def test_the_room_of_a_queue_is_a_number_that_the_server_reads():
    """True would be 1 to Python, and is no integer to PostgreSQL: the take fails."""
    rooms = shared(4, "ab").room(["a", "b"], 1, [])
    assert [*rooms.values()] == [1, 1]
    assert {type(room) for room in rooms.values()} == {int}


@pytest.mark.parametrize(
    ("n", "queues", "holds", "startable"),
    [
        (4, "ab", "", "ab"),
        (4, "ab", "aa", "ab"),
        (4, "ab", "aaa", "b"),  # the last runner is kept for b
        (4, "ab", "aaab", "ab"),  # and for none, once b has one; all four are at work, and the next one may be either
        (4, "ab", "aab", "ab"),
        (4, "abc", "aab", "c"),
        (4, "abc", "aa", "abc"),
        (4, "abc", "abc", "abc"),
        (1, "abc", "", "abc"),
        (2, "ab", "a", "b"),
    ],
)
def test_the_last_runner_is_kept_for_queues_without_one(n, queues, holds, startable):
    shares = shared(n, queues)
    hold(shares, holds)
    assert shares.startable() == set(startable)


def test_a_runner_that_leaves_its_queue_may_take_it_again():
    shares = shared(3, "ab")
    hold(shares, "aa")
    assert not shares.may_start("a")
    shares.leave(0)
    assert shares.may_start("a")
    shares.leave(0)
    assert shares.startable() == {"a", "b"}


def test_a_queue_with_a_share_has_that_many_runners_and_leaves_none():
    shares = shared(4, "ab", {"a": 4, "b": 1})
    hold(shares, "baaa")
    assert shares.startable() == {"a"}
    shares.leave(0)
    hold(shared(4, "ab", {"a": 4}), "aaaa")


@pytest.mark.parametrize(
    ("given", "holds", "idle", "rooms"),
    [
        ({}, "", 8, {"a": 7, "b": 7, "c": 7}),
        ({}, "aaaaaa", 2, {"a": 1, "b": 1, "c": 1}),
        ({}, "aaaaaaa", 1, {"b": 1, "c": 1}),
        ({}, "aaaaabc", 1, {"a": 1, "b": 1, "c": 1}),
        ({}, "aaaaaab", 1, {"c": 1}),
        ({"a": 2}, "a", 7, {"b": 6, "c": 6}),  # one more task of a is in the buffer
    ],
)
def test_no_more_tasks_are_taken_than_may_start(given, holds, idle, rooms):
    shares = shared(8, "abc", given)
    hold(shares, holds)
    assert shares.room(["a", "b", "c"], idle, [task(1, "a")]) == rooms


# --- the buffer


def task(id: int, queue: str) -> Taken:
    return Taken(id, 7, 0, 0, None, "null", queue)


class Bench:
    def __init__(self, n: int, queues: str, given: Mapping[str, int] | None = None) -> None:
        self.now = 1000.0
        self.woken = 0
        self.queues = list(queues)
        self.buffer = Buffer(self._wake, lambda: self.now, shares=shared(n, queues, given))

    def _wake(self, n: int) -> None:
        self.woken += n

    def fill(self, queues: str) -> None:
        self.buffer.fill([task(id, queue) for id, queue in enumerate(queues)])

    def turn(self, runner: int) -> str | bool:
        found = self.buffer.turn(runner)
        return found if isinstance(found, bool) else found.queue

    def wanted(self) -> Wanted:
        return self.buffer.wanted(self.queues)


def test_a_runner_passes_over_the_tasks_that_it_may_not_start():
    bench = Bench(2, "ab")
    bench.fill("aaba")
    assert [bench.turn(runner) for runner in range(2)] == ["a", "b"]
    assert [one.queue for one in bench.buffer.tasks] == ["a", "a"]


def test_a_runner_rests_beside_tasks_that_it_may_not_start_until_the_other_queue_has_one():
    bench = Bench(3, "ab")
    bench.fill("aaa")
    assert [bench.turn(runner) for runner in range(3)] == ["a", "a", True]
    assert bench.wanted()[2:] == (1, ["b"])
    bench.fill("b")
    assert bench.woken == 1
    assert bench.turn(2) == "b"


def test_the_kept_runner_is_woken_once_each_queue_has_one():
    bench = Bench(3, "ab")
    bench.fill("aaaa")
    assert [bench.turn(runner) for runner in range(3)] == ["a", "a", True]
    bench.buffer.hungry.clear()
    assert bench.buffer.turn(1, task(9, "b")) == task(9, "b")
    assert bench.woken == 1
    assert bench.buffer.hungry.is_set()
    assert bench.turn(2) == "a"


def test_a_runner_that_leaves_a_full_share_wakes_another_one():
    bench = Bench(3, "ab", {"a": 1})
    bench.fill("aa")
    assert [bench.turn(0), bench.turn(1)] == ["a", True]
    assert bench.buffer.turn(0, task(9, "b")) == task(9, "b")
    assert bench.woken == 1
    assert bench.turn(1) == "a"


def test_tasks_that_are_passed_over_for_too_long_are_given_back():
    bench = Bench(2, "ab")
    bench.fill("aabb")
    assert [bench.turn(runner) for runner in range(2)] == ["a", "b"]
    for _ in range(3):
        bench.buffer.started(bench.now)
        assert bench.buffer.surplus() == []
        bench.now += STALE / 4
    bench.buffer.started(bench.now)
    bench.now += STALE / 4
    assert [one.queue for one in bench.buffer.surplus()] == ["b", "a"]


def test_a_replaced_runner_holds_no_queue():
    bench = Bench(2, "ab")
    bench.fill("a")
    assert bench.turn(0) == "a"
    bench.buffer.leave(0)
    bench.fill("a")
    assert bench.turn(2) == "a"


# --- child processes


class FakeChild:
    """A child process, as its pool sees it."""

    made = 0

    def __init__(self, *args: Any) -> None:
        FakeChild.made += 1
        self.killed = self.spoiled = False
        self.served = self.memory = 0
        self.process = SimpleNamespace(poll=lambda: None, wait=lambda: None)

    def kill(self) -> None:
        pass

    def ask_to_leave(self) -> None:
        pass

    def reap(self, until: float) -> None:
        pass


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setattr(children, "Child", FakeChild)
    pool = children.Children([], several=True)
    yield pool
    pool.close(0)


def test_a_queue_whose_child_died_leaves_the_last_idle_one(pool):
    good, bad = pool._lend("good"), pool._lend("bad")
    pool._take_back(good, "good")
    bad.killed = True
    pool._take_back(bad, "bad")
    again = pool._lend("bad")
    assert again not in (good, bad)
    assert pool._lend("good") is good
    pool._take_back(good, "good")
    pool._take_back(again, "bad")  # it lives
    assert [pool._lend("bad"), pool._lend("bad")] == [again, good]


def test_a_runner_does_not_wait_for_ever_for_a_child(pool, monkeypatch):
    monkeypatch.setattr(children, "START", 0.1)
    hangs = threading.Event()
    monkeypatch.setattr(pool, "_begun", lambda: hangs.wait(LONG))
    with pytest.raises(pgqueue.ProcessDied, match="no process could be started"):
        pool._lend("good")
    hangs.set()


# --- a worker


@pytest.fixture
def client(blocking: Callable[..., pgqueue.Client]) -> pgqueue.Client:
    return blocking()


@pytest.fixture
def release() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


def working(client: pgqueue.Client, **options: Any) -> AbstractContextManager[Worker]:
    return running(Worker(client, **({"grace": 0.5, "concurrency": 8} | options)))


@pytest.fixture(params=["thread", "async"])
def jobs(request: pytest.FixtureRequest, client: pgqueue.Client, release: threading.Event) -> Any:
    """A job that hangs, and one that returns its argument; and the tasks that hang."""
    hanging: set[int] = set()
    if request.param == "thread":

        @client.job(queue="bad")
        def bad(task: pgqueue.Task) -> None:
            hanging.add(task.id)
            release.wait(LONG)

        @client.job(queue="good", keep_result=60)
        def good(n: int) -> int:
            return n

        return bad, good, hanging

    @client.job(queue="bad")
    async def abad(task: pgqueue.AsyncTask) -> None:
        hanging.add(task.id)
        await asyncio.sleep(LONG)

    @client.job(queue="good", keep_result=60)
    async def agood(n: int) -> int:
        return n

    return abad, agood, hanging


@pytest.mark.slow
def test_tasks_that_hang_leave_a_runner_to_another_queue(client, jobs):
    bad, good, hanging = jobs
    with working(client):
        bad.put_many([()] * 20)
        eventually(lambda: len(hanging) == 7)
        assert [good.put(n).result(10) for n in range(20)] == list(range(20))
        eventually(lambda: client.queue("bad").stats()["taken"] == 7)  # those that were taken ahead go back
        assert [good.put(n).result(10) for n in range(20)] == list(range(20))
        assert client.queue("bad").stats()["taken"] == len(hanging) == 7


@pytest.mark.slow
def test_tasks_that_begin_to_hang_leave_a_runner_too(client, release):
    """The buffer is full of them by then."""
    hanging, done = set[int](), set[int]()

    @client.job(queue="bad")
    def bad(n: int) -> None:
        done.add(n)
        if len(done) > 2000:
            hanging.add(n)
            release.wait(LONG)

    @client.job(queue="good", keep_result=60)
    def good(n: int) -> int:
        return n

    bad.put_many([(n,) for n in range(5000)])
    with working(client):
        eventually(lambda: len(hanging) == 7)
        assert [good.put(n).result(10) for n in range(20)] == list(range(20))
        eventually(lambda: client.queue("bad").stats()["taken"] == 7)
        assert len(hanging) == 7


def test_a_flood_leaves_a_runner_too(client, release):
    @client.job(queue="bad")
    def bad() -> None:
        release.wait(0.05)

    @client.job(queue="good", keep_result=60)
    def good(n: int) -> int:
        return n

    bad.put_many([()] * 2000)
    with working(client):
        eventually(lambda: client.queue("bad").stats()["total"] < 1990)
        assert [good.put(n).result(5) for n in range(3)] == list(range(3))
        assert client.queue("bad").stats()["ready"] > 500


@pytest.mark.slow
def test_a_share_bounds_a_queue(client, jobs):
    bad, good, hanging = jobs
    with working(client, shares={"bad": 2}):
        bad.put_many([()] * 10)
        eventually(lambda: len(hanging) == 2)
        assert [good.put(n).result(10) for n in range(20)] == list(range(20))
        assert len(hanging) == 2


def test_a_share_of_all_leaves_none(client, jobs):
    bad, _, hanging = jobs
    with working(client, shares={"bad": 8}):
        bad.put_many([()] * 10)
        eventually(lambda: len(hanging) == 8)


def test_a_queue_by_itself_has_all_runners(client, jobs):
    bad, _, hanging = jobs
    with working(client, queues=["bad"]):
        bad.put_many([()] * 10)
        eventually(lambda: len(hanging) == 8)


@pytest.mark.slow
def test_a_share_bounds_a_queue_with_runners_of_its_own(client, release):
    lonely, batched = list[int](), list[int]()

    @client.job(queue="lonely")
    async def wait(n: int) -> None:
        lonely.append(n)
        await asyncio.sleep(LONG)

    @client.batch_handler("batched", n=1)
    def batch(tasks: list[pgqueue.Task]) -> None:
        batched.append(len(tasks))
        release.wait(LONG)

    with working(client, shares={"lonely": 2, "batched": 3}):
        wait.put_many([(n,) for n in range(6)])
        client.queue("batched").put_many(range(6))
        eventually(lambda: (len(lonely), len(batched)) == (2, 3))
        assert client.queue("lonely").stats()["taken"] == 2


def test_a_share_on_a_command_line():
    assert read("reports=2") == ("reports", 2)
    assert read("a=b=10") == ("a=b", 10)
    for wrong in ("reports", "reports=", "=2", "reports=-1", "reports=two", "reports=²"):
        with pytest.raises(ValueError, match=r"a share is QUEUE=N|a queue's name has"):
            read(wrong)


@pytest.mark.parametrize(
    ("shares", "said"),
    [
        ({"bad": 0}, "share of queue 'bad'"),
        ({"bad": 9}, "the share of queue 'bad' is 9, more than the concurrency of 8"),
        ({"bad": "2"}, "share of queue 'bad'"),
        ({"other": 2}, "there is no share for queue 'other': the worker serves"),
        (["bad"], "shares are numbers by the names of queues"),
    ],
)
def test_a_wrong_share_is_refused(client, jobs, shares, said):
    with pytest.raises(ValueError, match=said):
        Worker(client, concurrency=8, shares=shares)
