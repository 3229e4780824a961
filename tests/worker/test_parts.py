"""The worker's parts without a database: what they decide, and the races between them, one step at a time."""

from __future__ import annotations

import asyncio
import functools
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from eventually import eventually
from hypothesis import given
from hypothesis import strategies as st
from statements import settled_by

from pgqueue._calls import call as calls
from pgqueue._calls.call import Refused
from pgqueue._calls.take import Taken
from pgqueue._engine import outages
from pgqueue.errors import ClosedError, ConnectionLost, ServerError
from pgqueue.jobs.job import is_async
from pgqueue.worker import crew as crew_module
from pgqueue.worker import sending as sending_module
from pgqueue.worker import settler as settler_module
from pgqueue.worker.buffer import AHEAD, LARGEST, MOST, STALE, Buffer
from pgqueue.worker.crew import Crew
from pgqueue.worker.describing import describe
from pgqueue.worker.failures import Failure, failure
from pgqueue.worker.handlers import bind
from pgqueue.worker.loops import Life
from pgqueue.worker.policy import policy
from pgqueue.worker.runners import Coroutines, Threads
from pgqueue.worker.runs import NEVER, PUT_OFF, Run, Runs
from pgqueue.worker.settler import COUNT, Settler

pytestmark = pytest.mark.once


def task(id: int, attempts: int = 0) -> Taken:
    return Taken(id, 7, 0, attempts, None, "null", "q")


def tasks(n: int) -> list[Taken]:
    return [task(id) for id in range(1, n + 1)]


# --- buffer


class Bench:
    """A buffer with runners that do as the test says, on a clock of its own."""

    def __init__(self, runners: int = 8) -> None:
        self.now = 1000.0
        self.woken = 0
        self.runners = runners
        self.buffer = Buffer(self._wake, lambda: self.now)

    def _wake(self, n: int) -> None:
        self.woken += n

    def all_rest(self) -> None:
        for _ in range(self.runners):
            assert self.buffer.turn(object()) is True

    def start(self) -> Taken:
        popped = self.buffer.tasks.popleft()
        self.buffer.started(self.now)
        return popped

    def handle(self, n: int, seconds: float) -> None:
        """All runners work at once on n tasks, each of which takes so long."""
        assert n % self.runners == 0
        for _ in range(n // self.runners):
            started = self.now
            self.now += seconds
            for _ in range(self.runners):
                self.buffer.finished(started, self.runners)


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_each_idle_runner_wants_a_task(bench):
    bench.all_rest()
    assert bench.buffer.wanted(["q"]).n == 8
    assert bench.buffer.fill(tasks(3)) == []
    assert bench.woken == 3
    assert bench.buffer.wanted(["q"]).n == 5  # the three in the buffer are for those that were woken


def test_never_wants_less_than_nothing(bench):
    bench.all_rest()
    bench.buffer.fill(tasks(7))
    assert bench.buffer.wanted(["q"]).n == 1


def test_nothing_is_held_before_anything_was_finished(bench):
    bench.all_rest()
    bench.buffer.wanted(["q"])
    bench.buffer.fill(tasks(8))
    for _ in range(8):
        bench.start()  # eight starts in no time say nothing of how long the handlers take
    bench.now += 0.001
    assert bench.buffer.wanted(["q"]).n == 0


def test_slow_handlers_hold_nothing(bench):
    bench.handle(80, seconds=1.0)
    assert bench.buffer.wanted(["q"]).n == 0


def test_quick_handlers_hold_a_tenth_of_a_second_of_work(bench):
    bench.handle(8000, seconds=0.002)  # 4000 tasks a second
    assert bench.buffer.wanted(["q"]).n == pytest.approx(4000 * AHEAD, rel=0.05)


def test_no_more_is_held_than_was_finished_before(bench):
    bench.handle(8, seconds=0.00001)
    assert bench.buffer.wanted(["q"]).n == 8


def test_no_more_is_held_than_the_largest(bench):
    bench.handle(8000, seconds=0.0)
    while wanted := bench.buffer.wanted(["q"]).n:
        assert wanted <= MOST
        bench.buffer.fill(tasks(wanted))
    assert len(bench.buffer.tasks) > LARGEST - MOST


def test_the_next_take_begins_when_there_is_room_for_as_many_as_one_brings(bench):
    bench.handle(8000, seconds=0.0)
    while wanted := bench.buffer.wanted(["q"]).n:
        bench.buffer.fill(tasks(wanted))
    for _ in range(len(bench.buffer.tasks) - (LARGEST - MOST) - 1):
        bench.start()
    assert not bench.buffer.hungry.is_set()
    bench.start()
    assert bench.buffer.hungry.is_set()
    assert bench.buffer.wanted(["q"]).n == MOST


def test_an_idle_hour_is_no_slowness_and_no_promise(bench):
    bench.handle(8000, seconds=0.002)
    before = bench.buffer.wanted(["q"]).n
    bench.now += 3600
    bench.all_rest()
    assert bench.buffer.wanted(["q"]).n == before + 8


def test_it_fills_up_again_at_half(bench):
    bench.handle(8000, seconds=0.002)
    ahead = bench.buffer.wanted(["q"]).n
    bench.buffer.fill(tasks(ahead))
    for _ in range(ahead - ahead // 2 - 1):
        bench.start()
    assert not bench.buffer.hungry.is_set()
    assert bench.buffer.wanted(["q"]).n == 0
    bench.start()
    assert bench.buffer.hungry.is_set()
    assert bench.buffer.wanted(["q"]).n == ahead - ahead // 2


def test_what_nobody_starts_goes_back_and_the_pace_with_it(bench):
    bench.handle(8000, seconds=0.002)
    bench.buffer.fill(tasks(20))
    bench.start()
    bench.now += STALE - 0.01
    assert bench.buffer.surplus() == []
    bench.now += 0.02
    assert sorted(task.id for task in bench.buffer.surplus()) == list(range(2, 21))
    assert not bench.buffer.tasks
    assert bench.buffer.wanted(["q"]).n == 0


def test_what_came_into_an_idle_buffer_is_not_stale(bench):
    bench.all_rest()
    bench.now += 3600
    bench.buffer.fill(tasks(8))
    assert bench.buffer.surplus() == []  # the runners have yet to wake up


def test_a_trickle_does_not_keep_it_from_going_stale(bench):
    bench.buffer.fill(tasks(1))
    for _ in range(4):
        bench.now += STALE / 4
        bench.buffer.fill(tasks(1))
    assert len(bench.buffer.surplus()) == 5


def test_handlers_that_become_slower_give_back_what_they_will_not_come_to(bench):
    bench.handle(8000, seconds=0.002)
    bench.buffer.fill(tasks(400))
    bench.handle(160, seconds=0.5)  # 16 a second
    bench.start()
    back = bench.buffer.surplus()
    assert [task.id for task in bench.buffer.tasks] == [2]  # 16 a second are 1.6 in AHEAD; the next stay
    assert len(back) == 398
    assert bench.buffer.surplus() == []


def test_tasks_of_slow_runners_that_wake_up_stay(bench):
    bench.handle(8, seconds=10.0)
    bench.all_rest()
    bench.buffer.fill(tasks(8))
    assert bench.buffer.surplus() == []


def test_a_runner_that_finds_nothing_gets_a_task_that_came_meanwhile(bench):
    bench.buffer.fill(tasks(1))
    assert bench.buffer.turn(object()) == tasks(1)[0]
    assert bench.buffer.turn(object()) is True


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_runner_that_gets_hungry_while_the_fetcher_looks_is_seen(bench, moment):
    clear = bench.buffer.hungry.clear

    def interrupted() -> None:
        if moment == "before":
            bench.buffer.turn(object())
        clear()
        if moment == "after":
            bench.buffer.turn(object())

    bench.buffer.hungry.clear = interrupted
    assert bench.buffer.wanted(["q"]).n == 1


def test_a_runner_that_gets_hungry_after_the_look_wakes_the_fetcher(bench):
    assert bench.buffer.wanted(["q"]).n == 0
    bench.buffer.turn(object())
    assert bench.buffer.hungry.is_set()


def test_close_wakes_all_returns_the_rest_and_refuses_more(bench):
    bench.all_rest()
    bench.buffer.fill(tasks(5))
    bench.start()
    assert sorted(task.id for task in bench.buffer.close()) == [2, 3, 4, 5]
    assert bench.woken == 8
    assert bench.buffer.turn(object()) is False
    late = tasks(2)
    assert bench.buffer.fill(late) is late
    assert bench.buffer.close() == []


def test_a_closed_buffer_wants_nothing_and_keeps_its_fetcher_awake(bench):
    bench.all_rest()
    bench.buffer.close()
    assert bench.buffer.wanted(["q"]).n == 0
    assert bench.buffer.hungry.is_set()


# --- runners


@pytest.fixture(params=["threads", "coroutines"])
def make_runners(request: pytest.FixtureRequest) -> Iterator[Callable[..., Threads | Coroutines]]:
    """Makes runners of either kind from a sync function; ends them."""
    made: list[Threads | Coroutines] = []

    def make(n: int, function: Callable[[Taken], Any]) -> Threads | Coroutines:
        async def handle(task: Taken) -> None:
            result = function(task)
            if asyncio.iscoroutine(result):
                await result

        made.append(Threads(n, function) if request.param == "threads" else coroutines(n, handle))
        return made[-1]

    yield make
    for runners in made:
        runners.buffer.close()
        runners.join()


def test_runners_start_each_task_once_however_they_come(make_runners):
    seen: list[int] = []
    runners = make_runners(4, lambda task: seen.append(task.id))
    for first in range(0, 4000, 20):  # most find the runners on their way to sleep or just woken
        size = first // 20 % 20 + 1
        runners.buffer.fill([task(first + i) for i in range(size)])
        if size == 1:
            eventually(lambda: not runners.buffer.tasks)
    expected = [first + i for first in range(0, 4000, 20) for i in range(first // 20 % 20 + 1)]
    eventually(lambda: len(seen) == len(expected))
    assert sorted(seen) == expected


def test_a_runner_that_is_written_off_is_replaced_and_ends(make_runners):
    hangs, seen = threading.Event(), []

    def handle(task: Taken) -> Any:
        async def hang() -> None:
            while not hangs.is_set():
                await asyncio.sleep(0.001)

        seen.append(task.id)
        if task.id != 1:
            return None
        return hang() if isinstance(runners, Coroutines) else hangs.wait(30)

    runners = make_runners(1, handle)
    runners.buffer.fill(tasks(2))
    eventually(lambda: seen == [1])
    (run,) = runners.runs.under_way()
    assert runners.runs.write_off(run)
    runners.replace(run)
    eventually(lambda: seen == [1, 2])
    assert runners.runs.lost(runners) == 1
    hangs.set()
    eventually(lambda: runners.runs.lost(runners) == 0)
    runners.buffer.fill([task(3)])
    eventually(lambda: seen == [1, 2, 3])
    assert runners.runs.under_way() == []


def test_a_run_that_has_ended_is_not_written_off():
    """The watch doubts the run just after its end: both find that the runner goes on."""
    runs = Runs()
    run = Run(task(1), 0.0, Threads(1, print, runs), None)
    assert runs.known.setdefault(1, run) is run
    del runs.known[1]
    assert not runs.write_off(run)
    assert run.doubted
    assert runs.may_go_on(run)
    run.pool.buffer.close()  # type: ignore[attr-defined]


@pytest.mark.parametrize("begins_first", [True, False])
def test_a_run_begins_or_is_withdrawn_and_not_both(begins_first):
    """The two orders of T1, which writes `began`, and of the watch, which looks at it."""
    runs = Runs()
    runners = Threads(1, print, runs)
    run = Run(task(1), NEVER, runners, None)
    runs.known[1] = run
    if begins_first:
        run.began = 0.0
    assert runs.withdraw(run) is not begins_first
    run.began = 0.0
    assert run.doubted
    assert runs.may_begin(run) is begins_first
    assert list(runs.known) == [1] * begins_first
    runners.buffer.close()


def test_a_run_is_written_off_once():
    runs = Runs()
    runners = Threads(1, print, runs)
    run = Run(task(1), 0.0, runners, None)
    runs.known[1] = run
    assert [runs.write_off(run), runs.write_off(run)] == [True, False]
    runners.buffer.close()


def test_the_same_task_does_not_begin_twice():
    back: list[tuple[int, float]] = []
    hangs, seen = threading.Event(), []

    def handle(task: Taken) -> None:
        seen.append(task.id)
        assert hangs.wait(30)

    runners = Threads(2, handle, Runs(put_off=lambda task, delay: back.append((task.id, delay))))
    runners.buffer.fill([task(1), task(1)])
    eventually(lambda: back and seen)
    assert (seen, back) == ([1], [(1, PUT_OFF)])
    hangs.set()
    runners.buffer.close()
    assert runners.join(30)


def test_join_waits_for_what_is_under_way():
    begun, go, seen = threading.Event(), threading.Event(), []

    def handle(task: Taken) -> None:
        begun.set()
        assert go.wait(30)
        seen.append(task.id)

    runners = Threads(1, handle)
    runners.buffer.fill(tasks(2))
    assert begun.wait(30)
    assert [task.id for task in runners.buffer.close()] == [2]
    joining = threading.Thread(target=runners.join)
    joining.start()
    assert seen == []
    go.set()
    joining.join(30)
    assert not joining.is_alive()
    assert seen == [1]


def coroutines(n: int, handle: Any) -> Coroutines:
    return Coroutines(n, lambda: Life(handle))


def test_a_loop_outlives_what_asyncio_lets_out_of_it():
    seen: list[Any] = []

    async def leave() -> None:
        raise SystemExit(3)

    async def handle(task: Taken) -> None:
        try:
            if task.id == 1:
                await asyncio.create_task(leave())
            seen.append(task.id)
        except BaseException as error:
            seen.append(type(error))

    runners = coroutines(2, handle)
    runners.buffer.fill(tasks(1))
    eventually(lambda: seen == [SystemExit])
    runners.buffer.fill([task(2), task(3), task(4)])
    eventually(lambda: len(seen) == 4)
    runners.buffer.close()
    runners.join()


def test_handlers_that_never_wait_leave_turns_to_those_that_do():
    waited, stop = threading.Event(), threading.Event()

    async def handle(task: Taken) -> None:
        if task.id == 1:
            await asyncio.sleep(0)
            waited.set()
        elif not stop.is_set():
            runners.buffer.fill([task])  # the buffer never gets empty

    runners = coroutines(2, handle)
    runners.buffer.fill([task(2), task(1), task(3)])
    assert waited.wait(30)
    stop.set()
    runners.buffer.close()
    runners.join()


def test_runners_of_an_abandoned_loop_leave_the_buffer_to_those_of_the_next():
    """Time after time a handler blocks its loop while the others are idle; no wake-up and no task is lost."""
    hangs, seen = threading.Event(), []
    others = set(threading.enumerate())  # a test before this one may have left a loop that is blocked

    async def handle(task: Taken) -> None:
        seen.append(task.id)
        if task.id % 10 == 0:
            hangs.wait(30)

    runners = coroutines(3, handle)
    for first in range(0, 200, 10):
        runners.buffer.fill([task(first)])
        eventually(lambda first=first: first in seen)  # type: ignore[misc]
        (run,) = runners.runs.under_way()
        assert runners.runs.write_off(run)
        assert runners.abandon(run, run) == []
        assert runners.abandon(run, run) == []  # once
        for id in range(first + 1, first + 10):
            runners.buffer.fill([task(id)])
        eventually(lambda first=first: len(seen) == first + 10)  # type: ignore[misc]
        eventually(lambda: runners.buffer._idle == 3)  # those of the abandoned loops are not counted
    assert sorted(seen) == list(range(200))
    hangs.set()
    eventually(lambda: not runners.runs.known)
    runners.buffer.fill([task(id) for id in range(201, 204)])
    eventually(lambda: len(seen) == 203)
    runners.buffer.close()
    assert runners.join(30)
    eventually(lambda: not [one for one in set(threading.enumerate()) - others if one.name == "pgqueue-loop"])


# --- crew


class Desk:
    """Stands for the settler: notes what is given back."""

    def __init__(self) -> None:
        self.back: list[int] = []
        self.is_behind = False

    def give_back(self, tasks: list[Taken]) -> None:
        self.back += [task.id for task in tasks]

    def open_queues(self, queues: Sequence[str]) -> Sequence[str]:
        return () if self.is_behind else queues


class Hand(Crew):
    """A crew whose takes are the test's: they wait for a signal as a real one, then return what `coming` holds."""

    def __init__(self, runners: Threads, desk: Desk) -> None:
        self.coming: list[Any] = []
        self.asked: list[int] = []
        self.waits = threading.Event()
        self.closed = threading.Event()
        client = SimpleNamespace(shell=SimpleNamespace(core=SimpleNamespace(outage=outages.Outage("me"))))
        super().__init__(client, ["q"], runners, desk, SimpleNamespace(), self.closed.set)  # type: ignore[arg-type]

    def _take(self, queues: Sequence[str], n: int, timeout: float | None) -> list[Taken]:
        self.asked.append(n)
        signal = self._signal()
        while not self.coming and not signal.is_set():
            self.waits.set()
            signal.wait(0.001)
        result = self.coming.pop(0) if self.coming else []
        if isinstance(result, Exception):
            raise result
        return result

    def end(self) -> None:
        self.stop()
        self.give_back()
        assert self.join(30)


def test_tasks_that_a_take_returns_after_the_stop_are_given_back():
    seen: list[int] = []
    desk = Desk()
    hand = Hand(Threads(2, lambda task: seen.append(task.id)), desk)
    assert hand.waits.wait(30)
    with hand._lock:  # the stop has begun, and the take does not know yet
        hand._closing.set()
        hand._buffer.close()
        hand.coming.append(tasks(3))
    hand.end()
    assert (desk.back, seen) == ([1, 2, 3], [])


def test_a_signal_made_after_the_stop_is_set(monkeypatch):
    hand = Hand(Threads(1, lambda task: None), Desk())
    hand.end()
    assert hand._signal().is_set()


def test_every_signal_that_a_take_may_wait_for_is_set_by_the_stop():
    hand = Hand(Threads(1, lambda task: None), Desk())
    signals = [hand._signal() for _ in range(50)]
    hand.end()
    assert all(signal.is_set() for signal in signals)


def test_stop_is_safe_while_the_fetcher_makes_signals():
    hand = Hand(Threads(1, lambda task: None), Desk())
    kept, enough = [], threading.Event()

    def make() -> None:
        while not enough.is_set():
            kept.append(hand._signal())

    maker = threading.Thread(target=make)
    maker.start()
    try:
        eventually(lambda: len(kept) > 1000)
        hand.end()
    finally:
        enough.set()
        maker.join()
    assert all(signal.is_set() for signal in kept)


def test_a_stop_is_quick_wherever_the_fetcher_is(monkeypatch):
    monkeypatch.setattr(crew_module, "STALE", 600.0)  # for so long a fetcher sleeps
    for _ in range(50):
        hand = Hand(Threads(1, lambda task: None), Desk())
        ending = threading.Thread(target=hand.end)
        ending.start()
        ending.join(30)
        assert not ending.is_alive()


@pytest.mark.slow
def test_a_blocked_runner_leaves_the_fetcher_asleep_and_its_tasks_go_back(monkeypatch):
    go = threading.Event()
    desk = Desk()

    def run(task: Taken) -> None:
        go.wait(30)

    hand = Hand(Threads(1, run), desk)
    hand.coming.append(tasks(5))
    eventually(lambda: desk.back)
    assert sorted(desk.back) == [2, 3, 4, 5]
    assert len(hand.asked) == 1
    go.set()
    hand.end()


def test_nothing_is_taken_while_the_settler_is_behind():
    desk = Desk()
    desk.is_behind = True
    hand = Hand(Threads(1, lambda task: None), desk)
    assert not hand.waits.wait(0.1)
    desk.is_behind = False
    assert hand.waits.wait(30)
    hand.end()


def test_an_error_while_taking_is_logged_and_taking_goes_on(monkeypatch, caplog):
    monkeypatch.setattr(crew_module, "REFUSED", (0.0, 0.0))
    monkeypatch.setattr(outages, "FIRST", 0.0)
    seen: list[int] = []
    hand = Hand(Threads(1, lambda task: seen.append(task.id)), Desk())
    hand.coming += [ServerError("no server"), psycopg.errors.QueryCanceled("too slow"), tasks(1)]
    eventually(lambda: seen == [1])
    hand.end()
    known, unknown = caplog.records
    assert "tries again: no server" in known.getMessage()
    assert not known.exc_info
    assert unknown.exc_info is not None


def test_a_closed_client_ends_the_fetcher_and_tells():
    hand = Hand(Threads(1, lambda task: None), Desk())
    hand.coming.append(ClosedError("closed"))
    assert hand.closed.wait(30)
    hand.end()


# --- policy


@given(
    st.floats(0, 1e6), st.floats(0, 1e6), st.integers(1, 1000)
)  # attempts are those that failed, the one under way included
def test_delays_are_within_full_jitter(retry_delay, longest, attempts):
    delay = policy(20_000, retry_delay, longest).after(attempts)
    assert delay is not None
    assert 0 <= delay <= min(Fraction(retry_delay) * 2 ** (attempts - 1), Fraction(longest))


def test_delays_spread_over_the_whole_range():
    delays = [policy(20, 1.0, 3600.0).after(4) or 0 for _ in range(2000)]
    assert min(delays) < 1  # each of these fails once in 10^100 runs
    assert 7 < max(delays) <= 8


def test_the_last_attempt_exhausts():
    assert [policy(max_attempts=3).exhausted(n) for n in range(5)] == [False, False, False, True, True]


@pytest.mark.parametrize(
    "wrong", [{"max_attempts": 0}, {"max_attempts": None}, {"retry_delay": -1}, {"max_retry_delay": float("nan")}]
)
def test_a_policy_that_cannot_be_is_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        policy(**wrong)


# --- settler


class Office:
    """Stands for the shell of a client: notes what is sent, and does what the test puts into `then` first.

    Statistics are left out.
    """

    def __init__(self) -> None:
        self.core = SimpleNamespace(label="me", outage=outages.Outage("me"))
        self.sent: list[tuple[str, Any]] = []
        self.then: list[Callable[[], Any]] = []

    def fence(self, token: int | None = None) -> calls.Fence:
        return calls.Fence(token, 1, "me")

    def run(self, call: calls.Call[Any], relaxed: bool = False) -> list[Refused]:
        verb = call.sql.partition("pgqueue.")[2].partition("(")[0]
        if verb == "count_runs":
            return []
        self.sent.append((verb, settled_by(call)))
        result = self.then.pop(0)() if self.then else None
        return result or []

    def acked(self) -> list[int]:
        return [id for verb, ids in self.sent if verb == "ack_many" for id in ids]


@pytest.fixture
def office() -> Office:
    return Office()


@pytest.fixture
def settler(office: Office, monkeypatch: pytest.MonkeyPatch) -> Iterator[Settler]:
    monkeypatch.setattr(outages, "FIRST", 0.001)
    settler = Settler(office)  # type: ignore[arg-type]
    yield settler
    settler.stop()
    settler.close()


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settler_module, "AGE", 60.0)


def fails(error: Exception) -> Callable[[], Any]:
    def fail() -> Any:
        raise error

    return fail


def failed(task: Taken, error: str) -> Failure:
    return failure(task, error, policy(max_attempts=2), began=0.0)


def finish(settler: Settler, *ids: int) -> None:
    settler.done.extend((id, 7, "q") for id in ids)
    settler.tell()


def test_one_task_is_acked_after_age(settler, office):
    finish(settler, 1)
    eventually(lambda: office.acked() == [1])


def test_count_tasks_are_acked_at_once(patient, settler, office):
    finish(settler, *range(COUNT - 1))
    assert office.acked() == []
    finish(settler, COUNT - 1)
    eventually(lambda: office.acked() == list(range(COUNT)))
    assert len(office.sent) == 1


def test_close_settles_what_is_left(patient, settler, office):
    finish(settler, 1, 2)
    settler.fail(failed(task(3), "boom"))
    settler.close()
    assert sorted(office.sent) == [("ack_many", [1, 2]), ("fail", [3])]


def test_nothing_is_missed_that_comes_while_the_events_are_cleared(settler, office):
    clear, late = settler._some.clear, [1, 2, 3]

    def interrupted() -> None:
        clear()
        if late:
            finish(settler, late.pop(0))

    settler._some.clear = interrupted
    finish(settler, 0)
    eventually(lambda: office.acked() == [0, 1, 2, 3])


def test_failures_do_not_wait_for_acks_without_end(settler, office):
    def more() -> None:
        settler.fail(failed(task(99), "boom"))
        finish(settler, len(office.sent))

    office.then = [more] * 20
    finish(settler, 0)
    eventually(lambda: not office.then)
    assert [verb for verb, _ in office.sent[:4]] == ["ack_many", "fail"] * 2


def test_acks_do_not_wait_for_failures_without_end(settler, office):
    def more() -> None:
        settler.fail(failed(task(99), "boom"))

    office.then = [more] * 20
    settler.fail(failed(task(98), "boom"))
    finish(settler, 1)
    eventually(lambda: not office.then)
    assert [verb for verb, _ in office.sent[:2]] == ["ack_many", "fail"]


def test_acks_wait_for_a_slice_of_the_failures_only(patient, settler, office, monkeypatch):
    """Each failure takes as long as the slice: between an ack's arrival and its sending there is one of them."""
    monkeypatch.setattr(settler_module, "SLICE", 0.0)
    office.then = [lambda n=n: settler.done.append((n, 7, "q")) for n in range(50)]  # type: ignore[misc]
    for id in range(100, 150):
        settler.fail(failed(task(id), "boom"))
    settler.tell()
    settler._full.set()
    eventually(lambda: len([verb for verb, _ in office.sent if verb == "fail"]) == 50)
    verbs = [verb for verb, _ in office.sent]
    assert verbs[:50] == ["fail", "ack_many"] * 25


def test_failures_go_in_batches_that_grow_while_they_are_quick(patient, settler, office, monkeypatch):
    monkeypatch.setattr(settler_module, "SLICE", 60.0)  # any batch is quick, however busy the machine is
    for id in range(1000):
        settler.fail(failed(task(id), "boom"))
    settler.close()
    sizes = [len(ids) for _, ids in office.sent]
    assert sum(sizes) == 1000
    assert sizes[:3] == [1, 2, 4]
    assert max(sizes) > 100


@pytest.mark.parametrize(
    "error", [ConnectionLost("gone"), ServerError("away"), psycopg.errors.QueryCanceled("slow")], ids=lambda e: str(e)
)
def test_what_could_not_be_sent_is_sent_again(settler, office, caplog, error):
    office.then = [fails(error)] * 3
    finish(settler, 1)
    eventually(lambda: len(office.sent) == 4)
    assert office.acked() == [1] * 4
    assert [str(error) in message for message in caplog.messages] == [True]  # told once
    finish(settler, 2)
    eventually(lambda: office.acked()[-1] == 2)


@pytest.mark.parametrize("error", [ServerError("away"), ClosedError("closed")], ids=lambda e: str(e))
def test_a_stop_gives_up_what_cannot_be_sent(settler, office, caplog, monkeypatch, error):
    monkeypatch.setattr(sending_module, "LAST", 0.0)
    office.then = [fails(error)] * 1000
    settler.stop()
    finish(settler, 1)
    settler.give_back(tasks(2))
    settler.close()
    assert caplog.messages == [f"tasks could not be settled and will be delivered again: {error}"] * 2


def test_a_task_that_is_gone_is_no_news_but_one_that_was_lost_is(settler, office, caplog):
    refused = [Refused(1, None, "not found", None), Refused(2, "taken", "taken by another", "you")]
    office.then = [lambda: refused]
    finish(settler, 1, 2)
    eventually(lambda: caplog.messages)
    assert caplog.messages == ["a handled task could not be acked: task 2 is taken by you, not by this take of me"]


def test_a_failure_is_released_and_the_last_one_buried(settler, office, caplog):
    caplog.set_level(logging.WARNING, "pgqueue")
    settler.fail(failed(task(1, attempts=0), "boom"))
    settler.fail(failed(task(2, attempts=1), "bang"))
    settler.tell()
    eventually(lambda: office.sent == [("fail", [1]), ("fail", [2])])
    assert caplog.messages[0].startswith("task 1 of q failed, again in ")
    assert caplog.messages[1] == "task 2 of q is buried after 2 attempts: bang"


def hold_up(settler: Settler, office: Office) -> Callable[[], None]:
    """Hold the settler up in a call, until what this returns is called."""
    begun, over = threading.Event(), threading.Event()

    def wait() -> None:
        begun.set()
        assert over.wait(30)

    office.then = [wait]
    finish(settler, 0)
    assert begun.wait(30)
    return over.set


def test_behind_when_much_is_done_and_not_settled(settler, office):
    let_go = hold_up(settler, office)
    finish(settler, *range(4 * COUNT - 1))
    assert settler.open_queues(["q", "r"]) == ["q", "r"]
    finish(settler, 0)
    assert not settler.open_queues(["q", "r"])
    let_go()
    eventually(lambda: settler.open_queues(["q", "r"]) == ["q", "r"])


def test_failures_that_pile_up_keep_their_own_queue_from_being_taken(settler, office):
    let_go = hold_up(settler, office)
    for id in range(COUNT):
        settler.fail(failed(task(id), "boom"))
    assert settler.open_queues(["q", "r"]) == ["r"]
    let_go()
    settler.tell()
    eventually(lambda: settler.open_queues(["q", "r"]) == ["q", "r"])


class Refusing(Office):
    """Refuses each call that names one of `bad`, with an error that is no outage."""

    def __init__(self, *bad: int) -> None:
        super().__init__()
        self.bad = set(bad)
        self.settled: list[int] = []

    def run(self, call: calls.Call[Any], relaxed: bool = False) -> list[Refused]:
        answer = super().run(call, relaxed)
        if self.sent:
            if self.bad.intersection(ids := self.sent[-1][1]):
                raise psycopg.errors.LockNotAvailable("locked")
            self.settled += ids
        return answer


def test_tasks_that_are_refused_hold_up_no_others(patient, monkeypatch):
    """One of a thousand: the other queue's tasks are settled next, its own queue's by halves, and it at last."""
    monkeypatch.setattr(outages, "FIRST", 0.001)
    office = Refusing(500)
    settler = Settler(office)  # type: ignore[arg-type]
    settler.done.extend((id, 7, "rq"[id >= 10]) for id in range(1000))
    settler.tell()
    eventually(lambda: len(office.settled) == 999)
    assert sorted(office.settled[:10]) == list(range(10))
    assert len(office.sent) < 50
    eventually(lambda: office.sent[-1] == ("ack_many", [500]))
    assert settler._sender.held == {"q": 1}
    office.bad.clear()
    settler.close()
    assert sorted(office.settled) == list(range(1000))


def test_an_error_that_cannot_be_stored_buries_its_task_without_it(settler, office):
    def refuse() -> None:
        raise psycopg.errors.DatetimeFieldOverflow("interval out of range")

    office.then = [refuse]
    settler.fail(failed(task(1, attempts=0), "boom"))
    settler.tell()
    eventually(lambda: len(office.sent) == 2)
    settler.close()
    assert office.sent == [("fail", [1])] * 2


# --- handlers


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


def raised(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as caught:
        return caught


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ValueError("boom"), "ValueError: boom (test_parts.py:"),
        (SystemExit(3), "SystemExit: 3 (test_parts.py:"),
        (KeyError("k"), "KeyError: 'k' (test_parts.py:"),
        (Unspeakable(), f"{__name__}.Unspeakable: <exception str() failed> (test_parts.py:"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_an_error_is_described_with_its_place(error, said):
    assert describe(raised(error)).startswith(said)
    assert describe(raised(error)).endswith(", in raised)")


async def awaited(data: Any) -> None: ...


class AsyncCallable:
    async def __call__(self, data: Any) -> None: ...


def test_async_handlers_are_recognised_in_any_form():
    assert is_async(awaited)
    assert is_async(functools.partial(awaited))
    assert is_async(AsyncCallable())
    assert is_async(AsyncCallable().__call__)
    assert not is_async(print)
    assert not is_async(functools.partial(print))


def test_a_sync_handler_that_returns_an_awaitable_has_done_nothing():
    bound = bind(None, lambda data: awaited(data))  # type: ignore[arg-type, misc]
    with pytest.raises(TypeError, match="async def"):
        bound(task(1))
