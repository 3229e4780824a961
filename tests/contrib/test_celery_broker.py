"""The transport of kombu: its verbs on a database, by connections of kombu."""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from brokers import celery_url
from celery.exceptions import ImproperlyConfigured
from kombu import Connection, Consumer, Exchange, Producer, Queue
from kombu.exceptions import ChannelError, OperationalError
from statements import column

import pgqueue
from pgqueue.contrib.celery.clients import CLIENTS
from pgqueue.contrib.celery.transport import Transport


@pytest.fixture
def url(dsn: str) -> str:
    return celery_url(dsn)


@pytest.fixture
def make(url: str) -> Iterator[Callable[..., Connection]]:
    """Makes connections of kombu to the test's database."""
    with contextlib.ExitStack() as stack:
        yield lambda **options: stack.enter_context(Connection(url, transport_options=options))
    assert not CLIENTS._lent, "a connection was closed, and its client was not"


def drained(connection: Connection, got: list[Any], n: int) -> list[Any]:
    while len(got) < n:
        connection.drain_events(timeout=30)
    return got


def test_messages_come_once_by_priority_and_are_acked(
    make: Callable[..., Connection], blocking: Callable[..., pgqueue.Client]
) -> None:
    connection = make()
    box = connection.SimpleQueue("box")
    for number, priority in enumerate((0, 9, 5)):
        box.put({"number": number}, priority=priority)
    numbers = []
    for _ in range(3):
        message = box.get(timeout=30)
        numbers.append(message.payload["number"])
        message.ack()
    assert numbers == [1, 2, 0]
    with pytest.raises(box.Empty):
        box.get(timeout=0.05)
    box.close()
    connection.close()
    assert blocking().queue("box").stats()["calls"]["ack"] == 3


def test_a_requeued_message_comes_again_and_says_so(make: Callable[..., Connection]) -> None:
    box = make().SimpleQueue("box")
    box.put("text")
    first = box.get(timeout=30)
    assert first.delivery_info["redelivered"] is False
    first.requeue()
    again = box.get(timeout=30)
    assert (again.payload, again.delivery_info["redelivered"]) == ("text", True)
    again.reject()
    with pytest.raises(box.Empty):
        box.get(timeout=0.05)


@pytest.mark.parametrize(
    ("kind", "bound", "sent", "reached"),
    [
        ("direct", "a", ["a", "b"], ["a"]),
        ("fanout", "", ["a", "b"], ["a", "b"]),
        ("topic", "order.#", ["order.paid", "mail"], ["order.paid"]),
    ],
)
def test_exchanges(make: Callable[..., Connection], kind: str, bound: str, sent: list[str], reached: list[str]) -> None:
    connection, got = make(), []
    exchange = Exchange(f"by-{kind}", kind)
    with Consumer(
        connection,
        [Queue("bound", exchange, bound), Queue("after")],
        callbacks=[lambda body, message: (got.append(body), message.ack())],
    ):
        for key in sent:
            Producer(connection).publish({"key": key}, exchange=exchange, routing_key=key)
        drained(connection, got, len(reached))
        Producer(connection).publish({"key": "after"}, routing_key="after")  # then nothing else was on its way
        assert [body["key"] for body in drained(connection, got, len(reached) + 1)] == [*reached, "after"]


def test_a_prefetch_holds_back_what_comes_after_it(make: Callable[..., Connection]) -> None:
    connection, got = make(), []
    producer = Producer(connection)
    for number in range(3):
        producer.publish(number, routing_key="held", declare=[Queue("held", no_declare=False)])
    with Consumer(connection, [Queue("held")], callbacks=[lambda _, message: got.append(message)], prefetch_count=2):
        drained(connection, got, 2)
        with pytest.raises(TimeoutError):
            connection.drain_events(timeout=0.05)
        got[0].ack()
        drained(connection, got, 3)
        assert [message.payload for message in got] == [0, 1, 2]


def test_what_is_not_acked_is_given_back_at_the_end(make: Callable[..., Connection]) -> None:
    one, got = make(), []
    Producer(one).publish("text", routing_key="back", declare=[Queue("back")])
    with one.channel() as channel, Consumer(channel, [Queue("back")], callbacks=[lambda b, m: got.append(m)]):
        drained(one, got, 1)
    again = make().SimpleQueue("back").get(timeout=30)
    assert again.payload == "text"
    again.ack()


def test_a_purge_leaves_what_is_taken(make: Callable[..., Connection], blocking: Callable[..., pgqueue.Client]) -> None:
    connection = make()
    box = connection.SimpleQueue("box")
    for number in range(3):
        box.put(number)
    taken = box.get(timeout=30)
    box.clear()
    assert blocking().queue("box").stats()["taken"] >= 1
    taken.ack()


def test_what_waits_for_a_limit_or_in_a_lane_is_counted_and_purged(
    make: Callable[..., Connection], blocking: Callable[..., pgqueue.Client], db: psycopg.Connection
) -> None:
    limited, laned = make().SimpleQueue("limited"), make().SimpleQueue("laned")
    for box in limited, laned:
        box.put("first")
    blocking().limits.set("limited", concurrency=1)
    for number in range(2):
        blocking().queue("limited").put(number)
        blocking().queue("laned").put(number, lane="a")
    states = "SELECT state FROM pgqueue.tasks ORDER BY id"
    assert set(column(db, states)) == {"ready", "waiting", "blocked"}
    assert (len(limited), len(laned)) == (3, 3)
    limited.clear()
    laned.clear()
    assert (len(limited), len(laned), column(db, states)) == (0, 0, [])


def test_a_passing_queue_ends_with_its_channel(
    make: Callable[..., Connection], blocking: Callable[..., pgqueue.Client]
) -> None:
    connection, client = make(), blocking()
    reply = Queue("reply", Exchange("replies", "direct"), "reply", auto_delete=True, expires=10)
    with connection.channel() as channel:
        reply(channel).declare()
        assert "reply" in {queue.name for queue in client.queues()}
    assert "reply" not in {queue.name for queue in client.queues()}


def test_an_exclusive_queue_is_its_connections(
    make: Callable[..., Connection], blocking: Callable[..., pgqueue.Client]
) -> None:
    """Both connections share a client."""
    one, two, client = make(), make(), blocking()
    own = Queue("own", exclusive=True)
    own(one.channel()).declare()
    Producer(two).publish("text", routing_key="own")
    with pytest.raises(two.channel_errors):
        own(two.channel()).get()
    received = own(one.channel()).get()
    assert received.payload == "text"
    two.close()
    assert client.queue("own").stats()["taken"] == 1
    one.close()
    assert "own" not in {queue.name for queue in client.queues()}


def test_arguments_of_queues(make: Callable[..., Connection], blocking: Callable[..., pgqueue.Client]) -> None:
    connection, client = make(), blocking()
    client.exchanges.declare("dead")
    Queue("limited", message_ttl=5, max_length=10, expires=60, queue_arguments={"x-dead-letter-exchange": "dead"})(
        connection.channel()
    ).declare()
    info = client.queue("limited").info()
    assert (info.ttl, info.maxlen, info.expires, info.dead_letter) == (5.0, 10, 60.0, "dead")
    assert not info.auto_delete


def test_what_a_queue_lets_expire_is_told_by_its_dead_letters(make: Callable[..., Connection]) -> None:
    connection = make()
    dead = Exchange("dead", "fanout")
    told = Queue("told", dead)
    told(connection.channel()).declare()
    brief = Queue("brief", message_ttl=0.1, queue_arguments={"x-dead-letter-exchange": "dead"})
    Producer(connection).publish("by the queue", routing_key="brief", declare=[brief])
    letters = Queue("letters", queue_arguments={"x-dead-letter-exchange": "dead"})
    Producer(connection).publish("by itself", routing_key="letters", declare=[letters], expiration=0.1)
    box = connection.SimpleQueue("told")
    received = [box.get(timeout=30) for _ in range(2)]
    assert {message.payload for message in received} == {"by the queue", "by itself"}
    for message in received:
        message.ack()


def test_a_queue_that_expires_outlives_its_channel(
    make: Callable[..., Connection], blocking: Callable[..., pgqueue.Client]
) -> None:
    connection, client = make(), blocking()
    with connection.channel() as channel:
        Queue("kept", expires=60)(channel).declare()
    assert "kept" in {queue.name for queue in client.queues()}


def test_bodies_of_all_kinds_survive(make: Callable[..., Connection]) -> None:
    box = make().SimpleQueue("bodies")
    for body, options in [
        ({"text": "\0 ✓ \u202e"}, {"serializer": "json"}),
        ({"bytes": b"\0\xff", "set": {1}}, {"serializer": "pickle"}),
        ("x" * 2_000_000, {"serializer": "json", "compression": "zlib"}),
        ("y" * 2_000_000, {"serializer": "json"}),
    ]:
        box.producer.publish(body, routing_key="bodies", **options)
        message = box.queue(box.channel).get(accept=["json", "pickle"])
        assert message.payload == body
        message.ack()


def test_an_unroutable_message_is_dropped_or_kept(make: Callable[..., Connection]) -> None:
    connection = make(deadletter_queue="unrouted")
    Producer(connection).publish("lost", exchange="unknown", routing_key="k")
    kept = connection.SimpleQueue("unrouted").get(timeout=30)
    assert kept.payload == "lost"
    kept.ack()


def test_a_message_is_part_of_the_applications_transaction(
    url: str, connect: Callable[..., psycopg.Connection], blocking: Callable[..., pgqueue.Client]
) -> None:
    own, client = connect(), blocking()
    joined: list[Any] = [own]
    with Connection(url, transport_options={"connection": lambda: joined[0]}) as connection:
        producer = Producer(connection)
        with contextlib.suppress(ZeroDivisionError), own.transaction():
            producer.publish({"n": 0}, routing_key="mail")
            raise ZeroDivisionError
        with own.transaction():
            producer.publish({"n": 1}, routing_key="mail")
            assert client.queue("mail").take(0) is None
        joined[0] = None
        producer.publish({"n": 2}, routing_key="mail")
    assert [task.data["body"] for task in client.queue("mail").take_many(10, 5)] == ['{"n": 1}', '{"n": 2}']


def test_a_consumer_goes_on_after_its_connections_are_cut(
    make: Callable[..., Connection], db: psycopg.Connection
) -> None:
    connection, got = make(), []
    with Consumer(connection, [Queue("cut")], callbacks=[lambda body, m: (got.append(body), m.ack())]):
        with pytest.raises(TimeoutError):
            connection.drain_events(timeout=0.05)
        db.execute(
            "SELECT pg_terminate_backend(pid::int) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        db.execute("""SELECT pgqueue.put('cut', '{"body": "1", "content-type": "application/json",
            "content-encoding": "utf-8", "properties": {"delivery_info": {}}}')""")
        while not got:
            with contextlib.suppress(TimeoutError):
                connection.drain_events(timeout=30)
        assert got == [1]


def end_sessions(db: psycopg.Connection) -> None:
    """As after a crash of the server: all sessions are gone, and their clients open new ones."""
    db.execute("DELETE FROM pgqueue.session")


@pytest.mark.slow
def test_queues_that_ended_with_the_session_end_the_connection(
    make: Callable[..., Connection], db: psycopg.Connection
) -> None:
    """So that kombu connects anew and declares them. A take would make a queue that no exchange reaches."""
    connection = make()
    box = Queue("box", Exchange("boxes", "fanout"), exclusive=True)

    def consume(wait: Callable[[Any, list[Any]], None]) -> list[Any]:
        got: list[Any] = []
        with Consumer(connection, [box], callbacks=[lambda body, m: (got.append(body), m.ack())]):
            wait(connection, got)
        return got

    def until_it_ends(connection: Any, got: list[Any]) -> None:
        end_sessions(db)
        with pytest.raises(Transport.connection_errors, match="with it box"):
            connection.drain_events(timeout=30)

    def until_a_message(connection: Any, got: list[Any]) -> None:
        Producer(connection).publish("text", exchange="boxes")
        drained(connection, got, 1)

    consume(until_it_ends)
    connection.collect()
    assert consume(until_a_message) == ["text"]


def test_an_exclusive_queue_of_a_process_that_was_just_killed(
    make: Callable[..., Connection], connect: Callable[..., psycopg.Connection]
) -> None:
    """Its supervisor starts it again at once, and its session lives on for a moment."""
    killed, connection = connect(), make()
    killed.execute("SELECT pgqueue.open_session(grace => '0', label => 'killed')")
    killed.execute("SELECT pgqueue.create_queue('box', exclusive => true)")
    threading.Timer(0.2, killed.close).start()
    Queue("box", exclusive=True)(connection.channel()).declare()


@pytest.mark.slow
def test_an_exclusive_queue_of_a_process_that_lives(
    make: Callable[..., Connection], connect: Callable[..., psycopg.Connection]
) -> None:
    connect().execute("SELECT pgqueue.create_queue('box', exclusive => true)")
    with pytest.raises(Transport.channel_errors, match="exclusive to another session"):
        Queue("box", exclusive=True)(make().channel()).declare()


def test_a_callback_may_close_its_channel(make: Callable[..., Connection]) -> None:
    """As Celery's worker does with the channel of its mailbox after an error."""
    connection, got = make(), []
    channel = connection.channel()
    for number in range(3):
        Producer(connection).publish({"n": number}, routing_key="closing", declare=[Queue("closing")])

    def close(body: Any, message: Any) -> None:
        got.append(body["n"])
        message.ack()
        channel.close()

    with contextlib.suppress(TimeoutError):
        Consumer(channel, [Queue("closing")], callbacks=[close]).consume()
        connection.drain_events(timeout=30)
    assert got == [0]
    with Consumer(connection, [Queue("closing")], callbacks=[lambda body, m: (got.append(body["n"]), m.ack())]):
        drained(connection, got, 3)
    assert got == [0, 1, 2]


@pytest.mark.slow
def test_an_ack_after_the_take_has_ended_settles_nothing(
    make: Callable[..., Connection], blocking: Callable[..., pgqueue.Client], caplog: pytest.LogCaptureFixture
) -> None:
    connection, got = make(), []
    with (
        caplog.at_level(logging.WARNING, "pgqueue"),
        Consumer(connection, [Queue("late")], callbacks=[lambda _, message: got.append(message)]),
    ):
        Producer(connection).publish("text", routing_key="late")
        drained(connection, got, 1)
        client = blocking()
        client.queue("late").release_all()  # by an operator, while the worker has it
        drained(connection, got, 2)
        got[0].ack()
        with contextlib.suppress(TimeoutError):
            connection.drain_events(timeout=0.5)
        assert "an ack came too late" in caplog.text
        assert client.queue("late").stats()["taken"] == 1, "the second take holds it"
        got[1].ack()


# --- what is refused


def test_an_exchange_of_an_unknown_type(make: Callable[..., Connection]) -> None:
    with pytest.raises(ChannelError, match="type 'headers', for 'odd'"):
        make().channel().exchange_declare("odd", "headers")


def test_passive_declarations_of_what_does_not_exist(make: Callable[..., Connection]) -> None:
    channel = make().channel()
    with pytest.raises(ChannelError, match="no queue 'none'"):
        channel.queue_declare("none", passive=True)
    with pytest.raises(ChannelError, match="no exchange 'none'"):
        channel.exchange_declare("none", passive=True)


def test_an_unknown_option_in_the_url(dsn: str) -> None:
    url = celery_url(dsn, nonsense="1")
    with pytest.raises(ImproperlyConfigured, match="no option 'nonsense'"), Connection(url) as connection:
        connection.connect()


def test_eventlet_is_refused(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its pools would open no connection, and calls would wait for one."""
    patcher = types.SimpleNamespace(is_monkey_patched=lambda module: module == "thread")
    monkeypatch.setitem(sys.modules, "eventlet.patcher", patcher)
    with pytest.raises(ImproperlyConfigured, match="does not run under eventlet"), Connection(url) as connection:
        connection.connect()


def test_a_database_without_the_schema(empty_dsn: str) -> None:
    with pytest.raises(pgqueue.SchemaError, match="migrate up"), Connection(celery_url(empty_dsn)) as connection:
        connection.connect()


@pytest.mark.slow
def test_an_absent_server_is_a_connection_error() -> None:
    with Connection("pgqueue://127.0.0.1:1/none", connect_timeout=1) as connection:
        with pytest.raises(pgqueue.ServerError) as raised:
            connection.connect()
        assert isinstance(raised.value, Transport.connection_errors)
        with pytest.raises(OperationalError):
            connection.ensure_connection(max_retries=1, interval_start=0)


def test_the_password_is_not_shown() -> None:
    assert "secret" not in Connection("pgqueue://ada:secret@db.example.org/shop").as_uri()
