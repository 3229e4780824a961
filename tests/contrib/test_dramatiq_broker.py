"""The broker of Dramatiq: its verbs on a database, and its worker in a thread of the test."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import dramatiq
import dramatiq.worker
import psycopg
import pytest
import roles
from dramatiq.errors import ConnectionClosed, QueueJoinTimeout
from dramatiq.middleware import Middleware
from eventually import eventually
from statements import column, pass_time, rows, value

import pgqueue
from pgqueue.contrib.dramatiq import PgqueueBroker

pytestmark = pytest.mark.once
QUICK = 100  # milliseconds that a worker's threads wait


@pytest.fixture
def make(dsn: str) -> Iterator[Callable[..., PgqueueBroker]]:
    """Makes brokers on the test's database."""
    with contextlib.ExitStack() as stack:

        def made(**options: Any) -> PgqueueBroker:
            return stack.enter_context(contextlib.closing(PgqueueBroker(**({"url": dsn, "poll": None} | options))))

        yield made


@pytest.fixture
def broker(make: Callable[..., PgqueueBroker]) -> PgqueueBroker:
    return make()


@contextmanager
def working(broker: PgqueueBroker, threads: int = 2) -> Iterator[dramatiq.Worker]:
    worker = dramatiq.Worker(broker, worker_threads=threads, worker_timeout=QUICK)
    worker.start()
    try:
        yield worker
    finally:
        worker.stop()


def noting(broker: PgqueueBroker, **options: Any) -> tuple[Any, list[Any]]:
    """An actor, and the list of the arguments that it ran with."""
    got: list[Any] = []

    @dramatiq.actor(broker=broker, actor_name="note", **options)
    def note(argument: Any) -> None:
        got.append(argument)

    return note, got


def consumed(broker: PgqueueBroker, queue: str = "default", n: int = 1, prefetch: int = 10) -> tuple[Any, list[Any]]:
    """A consumer, and its first messages."""
    consumer = broker.consume(queue, prefetch, timeout=QUICK)
    got: list[Any] = []

    def is_enough() -> bool:
        if (message := next(consumer)) is not None:
            got.append(message)
        return len(got) >= n

    eventually(is_enough)
    return consumer, got


def arguments(messages: list[Any]) -> list[Any]:
    return [message.args[0] for message in messages]


# --- sending and taking


def test_messages_come_by_priority_and_are_acked(broker: PgqueueBroker) -> None:
    note, _ = noting(broker)
    for number, priority in enumerate((0, 9, 5)):
        note.send_with_options(args=(number,), broker_priority=priority)
    consumer, got = consumed(broker, n=3)
    assert arguments(got) == [1, 2, 0]
    for message in got:
        consumer.ack(message)
    consumer.close()
    assert broker.client.queue("default").stats()["calls"]["ack"] == 3


def test_an_actors_priority_is_that_of_its_messages(broker: PgqueueBroker, db: psycopg.Connection) -> None:
    note, _ = noting(broker, priority=7)
    note.send(0)
    assert column(db, "SELECT priority FROM pgqueue.tasks") == [7]


def test_messages_are_seen_by_the_names_of_their_actors(broker: PgqueueBroker, db: psycopg.Connection) -> None:
    note, _ = noting(broker)
    sent = note.send("ada")
    seen = "SELECT queue, data->>'job', data->>'id', (data->>'text')::json->>'args' FROM pgqueue.tasks"
    assert rows(db, seen) == [("default", "note", sent.message_id, '["ada"]')]


def test_a_delayed_message_is_a_delayed_task(broker: PgqueueBroker, db: psycopg.Connection) -> None:
    note, _ = noting(broker)
    sent = note.send_with_options(args=("later",), delay=60_000)
    assert (sent.queue_name, "eta" in sent.options) == ("default", False)
    assert rows(db, "SELECT queue, state FROM pgqueue.tasks") == [("default", "delayed")]
    assert broker.get_declared_delay_queues() == set()
    assert broker.get_queue_message_counts("default") == (0, 1, 0)
    pass_time(db, "1 minute")
    consumer, got = consumed(broker)
    assert arguments(got) == ["later"]
    consumer.close()


def test_a_prefetch_holds_back_what_comes_after_it(broker: PgqueueBroker) -> None:
    note, _ = noting(broker)
    for number in range(3):
        note.send(number)
    consumer, got = consumed(broker, n=2, prefetch=2)
    assert next(consumer) is None
    consumer.ack(got[0])
    eventually(lambda: (message := next(consumer)) and got.append(message) is None)
    assert arguments(got) == [0, 1, 2]
    consumer.close()


def test_what_the_worker_has_got_stays_taken_when_a_consumer_closes(
    broker: PgqueueBroker, db: psycopg.Connection
) -> None:
    note, _ = noting(broker)
    for number in range(3):
        note.send(number)
    consumer, got = consumed(broker, n=2)
    assert column(db, "SELECT state FROM pgqueue.tasks ORDER BY id") == ["taken"] * 3
    consumer.close()
    assert column(db, "SELECT state FROM pgqueue.tasks ORDER BY id") == ["taken", "taken", "ready"]
    consumer.ack(got[0])
    consumer.requeue([got[1]])
    assert column(db, "SELECT state FROM pgqueue.tasks ORDER BY id") == ["ready", "ready"]


def test_the_next_consumer_settles_messages_of_a_closed_one(broker: PgqueueBroker, db: psycopg.Connection) -> None:
    """As Dramatiq's worker does, which knows only the consumer that its thread has now."""
    note, _ = noting(broker)
    for number in range(3):
        note.send(number)
    first, got = consumed(broker, n=3)
    first.close()
    second = broker.consume("default", timeout=QUICK)
    second.ack(got[0])
    second.nack(got[1])
    second.requeue([got[2]])
    assert column(db, "SELECT queue || ' ' || state FROM pgqueue.tasks ORDER BY id") == [
        "default.XQ ready",
        "default ready",
    ]
    second.close()


def test_requeued_messages_keep_their_place(broker: PgqueueBroker) -> None:
    note, _ = noting(broker)
    for number in range(3):
        note.send(number)
    consumer, got = consumed(broker, n=3)
    consumer.requeue([got[2], got[0]])
    consumer.ack(got[1])
    consumer.close()
    consumer, got = consumed(broker, n=2)
    assert arguments(got) == [0, 2]
    consumer.close()


def test_a_message_is_settled_once(broker: PgqueueBroker, caplog: pytest.LogCaptureFixture) -> None:
    note, _ = noting(broker)
    note.send(0)
    consumer, (message,) = consumed(broker)
    consumer.ack(message)
    with caplog.at_level(logging.WARNING):
        consumer.ack(message)
        consumer.nack(message)
        consumer.nack(note.message(1))  # of no consumer
    assert caplog.text.count("was settled before, or not taken") == 3
    consumer.close()


def test_an_ack_after_the_take_has_ended_settles_nothing(
    broker: PgqueueBroker, caplog: pytest.LogCaptureFixture
) -> None:
    note, _ = noting(broker)
    note.send(0)
    consumer, got = consumed(broker)
    broker.client.queue("default").release_all()  # by an operator, while the worker has it
    eventually(lambda: (message := next(consumer)) and got.append(message) is None)
    consumer.ack(got[0])
    with caplog.at_level(logging.WARNING):
        assert next(consumer) is None
    assert "too late" in caplog.text
    assert broker.client.queue("default").stats()["taken"] == 1, "the second take holds it"
    consumer.ack(got[1])
    consumer.close()
    assert broker.client.queue("default").stats()["total"] == 0


def test_a_queue_of_another_service_gets_no_consumer(broker: PgqueueBroker) -> None:
    with working(broker):
        broker.enqueue(dramatiq.Message("others", "unknown", (), {}, {}))
    assert broker.get_declared_queues() == set()
    assert broker.get_queue_message_counts("others") == (1, 0, 0)


# --- dead letters


def test_a_rejected_message_is_a_dead_letter_for_a_week(broker: PgqueueBroker, db: psycopg.Connection) -> None:
    note, _ = noting(broker)
    note.send("bad")
    consumer, (message,) = consumed(broker)
    message.fail()
    message.stuff_exception(ValueError("no such page"))
    consumer.nack(message)
    consumer.close()
    dead = "SELECT queue, state, error, round(extract(epoch FROM expires_at - now()) / 3600) FROM pgqueue.tasks"
    assert rows(db, dead) == [("default.XQ", "ready", "ValueError: no such page", 168)]
    assert broker.get_queue_message_counts("default") == (0, 0, 1)


def test_an_operators_bury_and_max_takes_lead_there_too(broker: PgqueueBroker) -> None:
    note, _ = noting(broker)
    for number in range(2):
        note.send(number)
    queue = broker.client.queue("default")
    queue.alter(max_takes=1)
    queue.take(30).bury()
    queue.take(30).release(error="failed")
    assert broker.get_queue_message_counts("default") == (0, 0, 2)


def test_dead_letters_are_sent_again(broker: PgqueueBroker) -> None:
    note, got = noting(broker, max_retries=0)
    broker.declare_queue("default")
    note.send("bad")
    consumer, (message,) = consumed(broker)
    consumer.nack(message)
    consumer.close()
    consumer, (letter,) = consumed(broker, "default.XQ")
    broker.enqueue(letter)
    consumer.ack(letter)
    consumer.close()
    assert broker.get_queue_message_counts("default") == (1, 0, 0)
    with working(broker):
        broker.join("default", interval=5)
    assert got == ["bad"]


def test_what_is_no_message_is_a_dead_letter(broker: PgqueueBroker, db: psycopg.Connection) -> None:
    broker.declare_queue("default")
    with working(broker):
        db.execute("SELECT pgqueue.put('default', '\"text\"')")
        eventually(lambda: broker.get_queue_message_counts("default") == (0, 0, 1))
    assert "DecodeError" in value(db, "SELECT error FROM pgqueue.tasks")


def test_a_queue_that_a_put_has_made_gets_dead_letters(broker: PgqueueBroker, db: psycopg.Connection) -> None:
    db.execute("""SELECT pgqueue.put('default', '{"job": "unknown"}')""")
    broker.declare_queue("default")
    with working(broker):
        eventually(lambda: broker.get_queue_message_counts("default") == (0, 0, 1))
    assert "ActorNotFound" in value(db, "SELECT error FROM pgqueue.tasks")


def test_another_dead_letter_exchange_stays(make: Callable[..., PgqueueBroker]) -> None:
    broker = make(dead_message_ttl=5000)
    broker.client.exchanges.declare("dead")
    broker.client.create_queue("own", dead_letter="dead")
    for name in ("own", "default"):
        broker.consume(name).close()
    assert broker.client.queue("own").info().dead_letter == "dead"
    assert broker.client.queue("default.XQ").info().ttl == 5.0


# --- the worker


def test_a_worker_runs_what_python_and_sql_send(broker: PgqueueBroker, db: psycopg.Connection) -> None:
    note, got = noting(broker)
    with working(broker):
        note.send("by send")
        note.send_with_options(args=("by delay",), delay=50)
        db.execute("""SELECT pgqueue.put('default', '{"job": "note", "args": ["by SQL"]}')""")
        db.execute("""SELECT pgqueue.put('default', '{"job": "note", "args": {"argument": "by name"}}')""")
        broker.join("default", interval=5)
    assert sorted(got) == ["by SQL", "by delay", "by name", "by send"]


def test_a_failed_message_is_retried_and_then_dead(broker: PgqueueBroker, db: psycopg.Connection) -> None:
    attempts = []

    @dramatiq.actor(broker=broker, max_retries=2, min_backoff=10, max_backoff=20)
    def fail() -> None:
        attempts.append(1)
        raise ZeroDivisionError("division")

    with working(broker):
        fail.send()
        broker.join("default", interval=5)
    assert len(attempts) == 3
    assert rows(db, "SELECT queue, error FROM pgqueue.tasks") == [("default.XQ", "ZeroDivisionError: division")]


def test_a_stopped_worker_gives_back_what_it_has_not_begun(broker: PgqueueBroker, db: psycopg.Connection) -> None:
    begun, go_on = threading.Event(), threading.Event()

    @dramatiq.actor(broker=broker)
    def wait() -> None:
        begun.set()
        go_on.wait(30)

    for _ in range(3):
        wait.send()
    with working(broker, threads=1) as worker:
        assert begun.wait(30)
        eventually(lambda: broker.client.queue("default").stats()["taken"] >= 2)  # its prefetch is 2
        stopping = threading.Thread(target=worker.stop)
        stopping.start()
        eventually(lambda: not worker.workers[0].running)
        go_on.set()
        stopping.join(30)
    assert column(db, "SELECT state FROM pgqueue.tasks") == ["ready"] * 2


def test_a_paused_worker_runs_nothing_twice(broker: PgqueueBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """The consumers close for a pause, while messages are in the worker's hands."""
    monkeypatch.setattr(dramatiq.worker, "CONSUMER_RESTART_DELAY_SECS", 0.01)
    note, got = noting(broker)
    with working(broker) as worker:
        for number in range(20):
            note.send(number)
        worker.pause()
        worker.resume()
        broker.join("default", interval=5)
    assert sorted(got) == list(range(20))


def test_a_worker_goes_on_after_its_connections_are_cut(
    broker: PgqueueBroker, db: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dramatiq.worker, "CONSUMER_RESTART_DELAY_SECS", 0.01)
    note, got = noting(broker)
    with working(broker):
        note.send("before")
        eventually(lambda: got == ["before"])
        db.execute(
            "SELECT pg_terminate_backend(pid::int) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        db.execute("""SELECT pgqueue.put('default', '{"job": "note", "args": ["after"]}')""")
        eventually(lambda: "after" in got)


def test_signals_of_middleware_come_in_their_order(broker: PgqueueBroker) -> None:
    seen: list[str] = []

    class Watching(Middleware):
        def __getattribute__(self, name: str) -> Any:
            watched = ("declare_queue", "declare_delay_queue", "enqueue", "process_message", "ack", "nack")
            if name.partition("_")[2] in watched:
                return lambda *args, **options: seen.append(name)
            return super().__getattribute__(name)

    broker.add_middleware(Watching())
    note, _ = noting(broker)
    note.send(1)  # not beside a worker, which may begin before the signal that follows the put
    with working(broker):
        broker.join("default", interval=5)
    assert seen == [
        *("before_declare_queue", "after_declare_queue", "before_enqueue", "after_enqueue"),
        *("before_process_message", "after_process_message", "before_ack", "after_ack"),
    ]


# --- transactions


def test_a_message_is_part_of_the_applications_transaction(
    make: Callable[..., PgqueueBroker], connect: Callable[..., psycopg.Connection], db: psycopg.Connection
) -> None:
    own = connect()
    joined: list[Any] = [own]
    broker = make(connection=lambda: joined[0])
    note, _ = noting(broker)
    with contextlib.suppress(ZeroDivisionError), own.transaction():
        note.send("rolled back")
        raise ZeroDivisionError
    with own.transaction():
        note.send("committed")
        assert column(db, "SELECT state FROM pgqueue.tasks") == []
    joined[0] = None
    note.send("at once")
    with contextlib.suppress(ZeroDivisionError), own.transaction():
        broker.enqueue(note.message("by conn"), conn=own)
        raise ZeroDivisionError
    consumer, got = consumed(broker, n=2)
    assert arguments(got) == ["committed", "at once"]
    consumer.close()


def test_an_error_of_the_applications_transaction_stays_what_it_is(
    broker: PgqueueBroker, connect: Callable[..., psycopg.Connection]
) -> None:
    """An application repeats its transaction after a failure to serialize it."""
    note, _ = noting(broker)
    note.send("makes the queue")
    own = connect()
    with own.transaction():
        own.execute("SET LOCAL lock_timeout = '1ms'")
        other = connect(autocommit=False)
        other.execute("LOCK TABLE pgqueue.task")
        with pytest.raises(psycopg.errors.LockNotAvailable), own.transaction():
            broker.enqueue(note.message("blocked"), conn=own)
        other.rollback()


# --- joins and flushes


def test_a_join_waits_for_what_is_taken_and_delayed(broker: PgqueueBroker, db: psycopg.Connection) -> None:
    note, _ = noting(broker)
    note.send_with_options(args=(0,), delay=60_000)
    with pytest.raises(QueueJoinTimeout):
        broker.join("default", interval=5, timeout=20)
    pass_time(db, "1 minute")
    consumer, got = consumed(broker)
    with pytest.raises(QueueJoinTimeout):
        broker.join("default", interval=5, timeout=20)
    consumer.ack(got[0])
    consumer.close()
    broker.join("default", timeout=0)


def test_a_flush_drops_all_but_what_is_processed(broker: PgqueueBroker) -> None:
    note, _ = noting(broker)
    note.send("processed")
    consumer, got = consumed(broker, prefetch=1)
    note.send("ready")
    note.send_with_options(args=("delayed",), delay=60_000)
    broker.client.queue("default.XQ").put({"job": "note"})
    broker.declare_queue("never-made")
    broker.flush_all()
    assert broker.get_queue_message_counts("default") == (0, 0, 0)
    assert broker.client.queue("default").stats()["taken"] == 1
    consumer.ack(got[0])
    consumer.close()


def test_what_waits_for_a_limit_or_in_a_lane_is_counted_and_flushed(
    broker: PgqueueBroker, db: psycopg.Connection
) -> None:
    note, _ = noting(broker)
    note.send("processed")
    consumer, _ = consumed(broker, prefetch=1)
    broker.client.limits.set("default", "limited", concurrency=1)
    for _ in range(2):
        broker.client.queue("default").put({"job": "limited"})
        broker.client.queue("default").put({"job": "note"}, lane="a")
    states = "SELECT state FROM pgqueue.tasks ORDER BY id"
    assert set(column(db, states)) == {"taken", "ready", "waiting", "blocked"}
    assert broker.get_queue_message_counts("default") == (4, 0, 0)
    broker.flush("default")
    assert broker.get_queue_message_counts("default") == (0, 0, 0)
    assert column(db, states) == ["taken"]
    consumer.close()


# --- what is refused


def test_queues_are_declared_without_a_connection() -> None:
    broker = PgqueueBroker(url="postgresql://127.0.0.1:1/none")
    broker.declare_queue("mail")
    broker.declare_queue("mail")
    broker.declare_queue("mail.DQ")
    assert broker.get_declared_queues() == {"mail"}


@pytest.mark.parametrize("name", ["", "q" * 198, "a\0b"])
def test_a_name_of_a_queue_that_is_not_valid(broker: PgqueueBroker, name: str) -> None:
    with pytest.raises(ValueError, match="a queue's name"):
        broker.declare_queue(name)
    assert broker.get_declared_queues() == set()


def test_options_that_do_not_exist(dsn: str) -> None:
    with pytest.raises(ValueError, match="unknown option, 'nonsense'"):
        PgqueueBroker(url="postgresql://127.0.0.1/shop?nonsense=1")
    with pytest.raises(ValueError, match="not a DSN"):
        PgqueueBroker(url="postgresql://a@b@c/:")
    with pytest.raises(TypeError, match="nonsense"):
        PgqueueBroker(url=dsn, nonsense=1)
    with pytest.raises(ValueError, match="a client was given"), pgqueue.Client(dsn) as client:
        PgqueueBroker(url=dsn, client=client)


def test_a_database_without_the_schema(empty_dsn: str) -> None:
    with contextlib.closing(PgqueueBroker(url=empty_dsn)) as broker:
        note, _ = noting(broker)
        with pytest.raises(pgqueue.SchemaError, match="migrate up"):
            note.send(0)


def test_an_absent_server_is_a_closed_connection() -> None:
    broker = PgqueueBroker(url="postgresql://127.0.0.1:1/none", connect_timeout=0.1)
    note, _ = noting(broker)
    with pytest.raises(ConnectionClosed, match="cannot connect"):
        note.send(0)
    with pytest.raises(ConnectionClosed, match="cannot connect"):
        broker.consume("default")


def test_a_message_that_is_too_large(make: Callable[..., PgqueueBroker], db: psycopg.Connection) -> None:
    note, _ = noting(make(max_data_size=1000))
    with pytest.raises(pgqueue.BadData, match="1000"):
        note.send("x" * 1000)
    assert column(db, "SELECT state FROM pgqueue.tasks") == []


def test_a_message_of_megabytes_is_sent(broker: PgqueueBroker) -> None:
    note, _ = noting(broker)
    note.send("x" * (3 << 20))
    consumer, (message,) = consumed(broker)
    assert len(message.args[0]) == 3 << 20
    consumer.ack(message)
    consumer.close()


def test_a_closed_broker_says_so(broker: PgqueueBroker) -> None:
    note, _ = noting(broker)
    note.send(0)
    consumer, _ = consumed(broker)
    broker.close()
    for call in (lambda: note.send(1), lambda: broker.consume("default"), lambda: next(consumer)):
        with pytest.raises(ConnectionClosed, match="closed"):
            call()
    consumer.close()


def test_a_client_that_was_given_stays_open(dsn: str) -> None:
    with pgqueue.Client(dsn) as client:
        broker = PgqueueBroker(client=client)
        broker.close()
        client.queue("default").put("still")


def test_a_role_that_may_only_put_can_send(dsn: str, db: psycopg.Connection, broker: PgqueueBroker) -> None:
    broker.consume("default").close()  # makes the queue
    with roles.made(dsn, db) as made, contextlib.closing(PgqueueBroker(url=made.dsn(made("put")))) as producer:
        note, _ = noting(producer)
        note.send("by a producer")
    assert column(db, "SELECT data->>'job' FROM pgqueue.tasks") == ["note"]


@pytest.mark.parametrize("more", [(), ("look",), ("manage",)])
def test_a_role_that_may_put_and_take_can_work(
    dsn: str, db: psycopg.Connection, broker: PgqueueBroker, more: tuple[str, ...]
) -> None:
    if "manage" not in more:  # otherwise the worker makes the queue
        broker.consume("default").close()
    with (
        roles.made(dsn, db) as made,
        contextlib.closing(PgqueueBroker(url=made.dsn(made("put", "take", *more)))) as worker,
    ):
        note, _ = noting(worker)
        for argument in ("bad", "good"):
            note.send(argument)
        consumer, (bad, good) = consumed(worker, n=2)
        consumer.nack(bad)
        consumer.ack(good)
        consumer.close()
    assert column(db, "SELECT queue FROM pgqueue.tasks") == ["default.XQ"]
