"""Ctrl-C at each place of a call of the blocking client at which CPython handles it (interrupting.py). Afterwards the
client works, and nothing is left behind: no connection, place, take, session, thread or lock that nobody has."""

from __future__ import annotations

import contextlib
import itertools
import os
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import interrupting
import lending
import psycopg
import pytest
from eventually import eventually
from interrupting import Place, interrupted, interrupts, walk
from statements import value

import pgqueue
from pgqueue._engine.duties import Duties, begin, end
from pgqueue._engine.gathering import Gatherings, Member
from pgqueue._engine.lending import Lending
from pgqueue._engine.own import OwnConn
from pgqueue._engine.takes import Take
from pgqueue._sync.settle import Held
from pgqueue._sync.shell import Shell
from pgqueue.errors import QueueDraining

LEFT = "SELECT count(*) FROM pgqueue.take"
SESSIONS = "SELECT count(*) FROM pgqueue.session"
SAMPLE = 60  # of so many places the default run tries one

pytestmark = [
    pytest.mark.once,
    pytest.mark.usefixtures("swept"),
    # psycopg's pipeline is a generator, and complains if an interrupt in the clean-up leaves it open; perhaps later.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
#: Met with 3.12.1, once in two passes of the slow ones: a segmentation fault of another thread's garbage collection.
walks = pytest.mark.skipif(
    sys.version_info[:2] == (3, 12), reason="CPython 3.12 can crash when a thread is traced while others run"
)
Work = Callable[[], object]
every = pytest.mark.parametrize("step", [SAMPLE, pytest.param(1, marks=[pytest.mark.slow, pytest.mark.timeout(600)])])


class Subject:
    """A client that is interrupted, and another thread that uses it too."""

    def __init__(self, client: pgqueue.Client, db: psycopg.Connection, *others: ThreadPoolExecutor) -> None:
        self.client = client
        self.queue = client.queue("q")
        self._db = db
        self._other, self._leaving = others
        self._leaving.submit(threads).result()
        self._held: list[pgqueue.Task] = []  # by the caller
        self._pending: list[Future[Any]] = []  # what other threads do meanwhile
        self._over = threading.Event()  # the call has ended, or was never made
        for _ in range(8):  # both have prepared their statements
            self.put_take_ack()
            self._other.submit(self.put_take_ack).result()
        self._threads = threads()

    def put_take_ack(self) -> None:
        queue = self.client.queue("again")
        queue.put("again")
        task = queue.take(30)
        assert task is not None
        task.ack()

    @property
    def pools(self) -> list[Any]:
        return list(self.client.shell.connections._pools.values())

    @property
    def gatherings(self) -> Gatherings:
        assert self.client.shell.together is not None
        return self.client.shell.together._gatherings()

    def end(self) -> None:
        """Wait for the other threads, once the call has ended."""
        self.let_go()
        for pending in self._pending:
            pending.result(30)
        self._pending.clear()
        self._over.clear()

    def let_go(self) -> None:
        """Have the other threads wait for the call no more."""
        self._over.set()

    def is_whole(self) -> None:
        """Fails if anything is left behind."""
        for task in self._held:
            with contextlib.suppress(pgqueue.TakeLost, pgqueue.TaskNotFound):
                task.ack()
        self._held.clear()
        self._other.submit(self.put_take_ack).result(30)  # in the main thread its own locks would not hinder
        self.put_take_ack()
        for pool in self.pools:
            eventually(lambda pool=pool: len(pool.front._free) + len(pool._pool) == pool._nconns)
            assert (list(pool._waiting), pool.front._waiting) == ([], 0)
        assert not self.gatherings._putting
        assert not any(one.under_way or one.waiting for one in self.gatherings._known.values())
        listener = self.client.shell.core.running_listener
        assert listener is not None
        assert not any(channel.waiters for channel in listener.hub._channels.values())
        eventually(lambda: value(self._db, LEFT) == 0)
        assert value(self._db, SESSIONS) == 1
        eventually(lambda: threads() <= self._threads)

    # --- the calls, each with what brings it about

    def put(self) -> Work:
        return lambda: self.queue.put(0)

    def put_many(self) -> Work:
        return lambda: self.queue.put_many([1, 2])

    def take(self) -> Work:
        self._db.execute("SELECT pgqueue.put('q', '0')")
        return lambda: self._held.append(self.queue.take(0))

    def take_nothing_after_a_wait(self) -> Work:
        return lambda: self.client.queue("empty").take(0.01)

    def take_after_a_wait(self) -> Work:
        def put_meanwhile() -> None:
            hub = self.client.shell.core.listener().hub
            self._until(lambda: any(channel.waiters for channel in list(hub._channels.values())))
            self.client.queue("waited").put(0)

        self._pending.append(self._other.submit(put_meanwhile))
        return lambda: self._held.append(self.client.queue("waited").take(30))

    def ack(self) -> Work:
        self._db.execute("SELECT pgqueue.put('q', '0')")
        task = self.queue.take(30)
        assert task is not None
        self._held.append(task)
        return task.ack

    def getconn(self) -> Work:
        """No connection is in front: the pool lends one."""
        for pool in self.pools:
            for conn in pool.front.shrink():
                pool.putconn(conn)
        return lambda: self.queue.put(0)

    def putconn(self) -> Work:
        """The connection has been in front for long enough: it goes back to the pool."""
        for pool in self.pools:
            for conn in pool.front._free:
                conn.kept_until = 0.0
        return lambda: self.queue.put(0)

    def getconn_instead_of_a_broken_one(self) -> Work:
        for pool in self.pools:
            for conn in pool.front._free:
                conn.ended = True
        return lambda: self.queue.put(0)

    def gather(self) -> Work:
        """The put goes in a batch that another thread leads."""
        self._make_wait(2)
        other = self._other.submit(self.queue.put, "other")
        eventually(lambda: len(self.gatherings._known["q"].waiting) == 1)
        self._pending.append(other)
        return lambda: self.queue.put("mine")

    def gather_alone(self) -> Work:
        """The put waits for its turn, and then goes by itself."""
        self._make_wait(1)
        return lambda: self.queue.put("mine")

    def _make_wait(self, n: int) -> None:
        """Both places under way are taken until n puts wait, or the call has ended."""
        gatherings = self.gatherings
        gathering = gatherings._known.get("q") or gatherings._new("q")
        members = [Member("", gatherings), Member("", gatherings)]
        for member in members:
            member.gathering = gathering
            gathering.under_way.add(member)

        def leave() -> None:
            self._until(lambda: len(gathering.waiting) >= n)
            for member in members:
                gatherings.leave(member)

        self._pending.append(self._leaving.submit(leave))

    def _until(self, condition: Callable[[], bool]) -> None:
        while not (condition() or self._over.is_set()):
            self._over.wait(0.001)


def threads() -> int:
    return len(os.listdir("/proc/self/task")) if Path("/proc/self/task").is_dir() else threading.active_count()


@pytest.fixture
def subject(blocking: Callable[..., pgqueue.Client], db: psycopg.Connection) -> Iterator[Subject]:
    with ThreadPoolExecutor(1) as other, ThreadPoolExecutor(1) as leaving:
        subject = Subject(blocking(pool_size=2), db, other, leaving)
        try:
            yield subject
        finally:
            subject.let_go()  # a test that has failed may not have waited for them


def places_of(subject: Subject, prepare: Callable[[Subject], Work], step: int) -> set[Place]:
    """Interrupt what `prepare` makes before each instruction, and look after each new place. Returns the places."""
    found = set[Place]()
    for number in itertools.count(0, step):
        place = interrupted(prepare(subject), number)
        subject.end()
        if place is None or place not in found:  # other numbers come out there too, and what is left adds up
            subject.is_whole()
        if place is None:
            return found
        found.add(place)
    raise AssertionError


CALLS = [
    Subject.put,
    Subject.put_many,
    Subject.take,
    Subject.take_after_a_wait,
    Subject.take_nothing_after_a_wait,
    Subject.ack,
    Subject.getconn,
    Subject.getconn_instead_of_a_broken_one,
    Subject.putconn,
    Subject.gather,
    Subject.gather_alone,
]


@walks
@every
@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.__name__)
def test_ctrl_c_leaves_the_client_whole(
    subject: Subject, call: Callable[[Subject], Work], step: int, record_property: Callable[[str, object], None]
) -> None:
    found = places_of(subject, call, step)
    record_property("places", len(found))
    print(f"Ctrl-C at {len(found)} places of {call.__name__}")
    assert len(found) >= (60 if step == 1 else 5)


def pairs_of(
    subject: Subject, prepare: Callable[[Subject], Work], step: int, second_step: int
) -> set[tuple[Place, Place]]:
    """Interrupt what `prepare` makes twice, in each other run three times, and look after each.

    Returns the places of the first and the second one, which comes at each place of the clean-up.
    """
    found = set[tuple[Place, Place]]()
    last: Place | None = None
    for first in itertools.count(0, step):
        for second in itertools.count(first % second_step, second_step):
            numbers = (first, second) if second // second_step % 2 else (first, second, second % 11)
            places = interrupts(prepare(subject), *numbers)
            subject.end()
            if not places:
                return found
            subject.is_whole()
            if places[0] == last or len(places) == 1 or places[1].file == interrupting.__file__:
                break  # the clean-up had ended before
            found.add((places[0], places[1]))
        last = places[0]
    raise AssertionError


@walks
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("call", "steps"),
    # The call and the clean-up of put_many have by far the most instructions.
    [(call, steps) for call in CALLS for steps in ((89, 29), (37, 17) if call is Subject.put_many else (11, 7))],
    ids=lambda one: getattr(one, "__name__", None),
)
def test_more_ctrl_c_in_the_clean_up_leaves_the_client_whole(
    subject: Subject,
    call: Callable[[Subject], Work],
    steps: tuple[int, int],
    record_property: Callable[[str, object], None],
) -> None:
    found = pairs_of(subject, call, *steps)
    record_property("pairs", len(found))
    print(f"Ctrl-C twice at {len(found)} pairs of places of {call.__name__}")
    assert len(found) >= 2


def interrupt(patch: pytest.MonkeyPatch, kind: type, name: str) -> None:
    """Have Ctrl-C come at the beginning of a function, whenever the main thread calls it."""
    whole = getattr(kind, name)

    def function(*args: Any, **options: Any) -> Any:
        if threading.current_thread() is threading.main_thread():
            raise KeyboardInterrupt
        return whole(*args, **options)

    patch.setattr(kind, name, function)


def test_a_connection_that_interrupts_left_serves_a_thread_that_waits(blocking: Callable[..., pgqueue.Client]) -> None:
    """The main thread makes no other call, and keeps the frames, as an interactive interpreter does."""
    client = blocking(pool_size=1)
    queue = client.queue("q")
    queue.put(0)
    duties = client.shell.core.duties
    with pytest.MonkeyPatch.context() as patch:
        interrupt(patch, Lending, "keep")
        with pytest.raises(KeyboardInterrupt) as kept:
            queue.put(1)
    assert [len(duty.lent) for duty in duties.open if isinstance(duty, Lending)] == [1]
    with ThreadPoolExecutor(1) as other:
        assert other.submit(queue.put, 2).result(10).state == "ready"
    assert not duties.open
    assert kept.value.__traceback__ is not None


def test_a_place_that_interrupts_left_is_given_up_for_those_that_wait(blocking: Callable[..., pgqueue.Client]) -> None:
    client = blocking(pool_size=3)
    queue = client.queue("q")
    queue.put(0)
    assert client.shell.together is not None
    gatherings = client.shell.together._gatherings()
    other, gathering = Member("", gatherings), gatherings._known["q"]
    gathering.under_way.add(other)
    with pytest.MonkeyPatch.context() as patch:
        interrupt(patch, Gatherings, "leave")
        with pytest.raises(KeyboardInterrupt) as kept:
            queue.put(1)
    assert len(gathering.under_way) == 2
    with ThreadPoolExecutor(1) as thread:
        assert thread.submit(queue.put, 2).result(10).state == "ready"
    assert gathering.under_way == {other}
    assert kept.value.__traceback__ is not None


@pytest.mark.parametrize("verb", ["take", "ack"])
def test_a_task_that_interrupts_left_taken_is_given_back(
    blocking: Callable[..., pgqueue.Client], db: psycopg.Connection, verb: str
) -> None:
    """The listener finds it."""
    client = blocking()
    queue = client.queue("q")
    queue.put(0)
    call: Work = partial(queue.take, 30)
    at: list[tuple[type, str]] = [(Shell, "made"), (Take, "fulfil")]
    if verb == "ack":
        task = queue.take(30)
        assert task is not None
        call, at = task.ack, [(OwnConn, "run"), (Held, "fulfil")]
    with pytest.MonkeyPatch.context() as patch:
        for kind, name in at:
            interrupt(patch, kind, name)
        with pytest.raises(KeyboardInterrupt) as kept:
            call()
    eventually(lambda: value(db, "SELECT state FROM pgqueue.tasks") == "ready")
    eventually(lambda: not client.shell.core.duties.open)
    assert kept.value.__traceback__ is not None


def test_a_duty_is_left_alone_while_its_frame_runs() -> None:
    """Also below a call of the same thread, by a handler of a signal; and in a thread that is not interrupted."""

    class Noted:
        fulfilled = 0

        def fulfil(self) -> None:
            self.fulfilled += 1

    duties, outer, inner, left = Duties(), Noted(), Noted(), Noted()

    def handle_a_signal() -> None:
        begin(duties, inner)
        end(duties, inner)

    def leave() -> None:
        begin(duties, left)

    def call() -> None:
        begin(duties, outer)
        leave()
        handle_a_signal()
        with ThreadPoolExecutor(1) as other:
            other.submit(duties.settle).result()
        assert (outer.fulfilled, left.fulfilled) == (0, 0)
        end(duties, outer)

    call()
    assert list(duties.open) == [left]
    handle_a_signal()  # the next call
    assert not duties.open
    assert (outer.fulfilled, inner.fulfilled, left.fulfilled) == (0, 0, 1)
    with ThreadPoolExecutor(1) as other:
        other.submit(leave).result()
    assert not duties.open


def test_an_interrupt_that_the_caller_handles_is_not_raised_again(blocking: Callable[..., pgqueue.Client]) -> None:
    client = blocking()
    client.queue("q").put_many([1])
    client.drain()
    try:
        raise KeyboardInterrupt
    except KeyboardInterrupt:
        with pytest.raises(QueueDraining):
            client.queue("q").put_many([2])


def put_and_take(client: pgqueue.Client) -> None:
    client.queue("q").put(0)
    task = client.queue("q").take(30)
    assert task is not None
    task.ack()


def is_gone(db: psycopg.Connection, before: int) -> bool:
    """Whether nothing of the clients of this test is left, neither here nor in the server."""
    others = """SELECT count(*) FROM pg_stat_activity
                 WHERE datname = current_database() AND pid <> pg_backend_pid() AND application_name <> %s
                   AND application_name !~* '^citus'  -- its daemon, and the connection that it keeps"""
    return value(db, others, lending.NAME) == 0 and value(db, SESSIONS) == 0 and threads() <= before


@walks
@pytest.mark.parametrize("step", [4 * SAMPLE, pytest.param(7, marks=[pytest.mark.slow, pytest.mark.timeout(600)])])
def test_ctrl_c_in_the_first_calls_of_a_client(db: psycopg.Connection, dsn: str, step: int) -> None:
    before = threads()
    for number in itertools.count(0, step):
        with pgqueue.Client(dsn) as client:
            place = interrupted(partial(put_and_take, client), number)
            put_and_take(client)
        eventually(lambda: is_gone(db, before))
        db.execute("SELECT pgqueue.truncate_queue('q')")
        if place is None:
            break
    assert number > 5 * step


@walks
@pytest.mark.parametrize("step", [SAMPLE // 3, pytest.param(1, marks=[pytest.mark.slow, pytest.mark.timeout(600)])])
def test_a_close_that_ctrl_c_cuts_off_is_made_good_by_another_one(db: psycopg.Connection, dsn: str, step: int) -> None:
    before = threads()
    for number in itertools.count(0, step):
        client = pgqueue.Client(dsn)
        put_and_take(client)
        place = interrupted(client.close, number)
        client.close()
        eventually(lambda: is_gone(db, before))
        if place is None:
            break
    assert number > 5 * step


# --- what the walk finds


def test_the_walk_finds_a_connection_that_is_had_before_the_try() -> None:
    def careless() -> None:
        conn = free.pop()
        try:
            len(conn)
        finally:
            free.append(conn)

    def careful() -> None:
        lent: list[str] = []
        try:
            for conn in latest:
                lent += (conn,)
                break
            len(lent)
        finally:
            free.extend(lent)

    free = ["a connection"]
    latest = iter(free.pop, None)
    lost = list[Place]()
    for place in walk(careless):
        if not free:
            lost.append(place)
            free.append("a connection")
    assert {place.function for place in lost} == {"careless"}
    assert all(free for _ in walk(careful))


def test_the_walk_finds_the_beginning_of_a_function() -> None:
    def begun() -> None:
        pass

    def work() -> None:
        begun()

    assert "begun" in {place.function for place in walk(work)}


def test_no_interrupt_comes_out_behind_the_walk() -> None:
    """A finaliser leaves a SIGINT pending. The finaliser runs when the call has ended, and its exception is freed."""

    class Freed:
        def __del__(self) -> None:
            pass

    def work() -> None:
        freed = Freed()
        try:
            len(())
        finally:
            len((freed, freed))

    found = [interrupts(work, *numbers) for numbers in itertools.product(range(30), range(30), range(3))]
    behind = [places for places in found if len(places) == 2 and places[1].file == interrupting.__file__]
    assert behind, "none came between the end of the call and that of the exception"


def test_the_walk_leaves_no_lock_locked_but_a_condition_variable() -> None:
    """The locks of C are safe. This is why no wait of the client has an Event."""

    def lock_all() -> None:
        with lock:
            len("")
        with condition:
            len("")

    lock, condition = threading.RLock(), threading.Condition(threading.Lock())
    locked = 0
    for _ in walk(lock_all):
        assert not lock._is_owned()  # type: ignore[attr-defined]  # as Condition asks it
        if condition._lock.locked():  # type: ignore[attr-defined]
            locked += 1
            condition.release()
    assert locked > 0
