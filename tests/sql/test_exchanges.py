"""Exchanges, bindings, retained messages and what ends with a session, in SQL."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb
from statements import column, put, rows, take, value
from stepping import die, waiting

Connect = Callable[..., psycopg.Connection]
PUBLISH = "SELECT pgqueue.publish(%s, %s, to_jsonb(%s::text))"
MATCH = "SELECT pgqueue._matches(%s, %s, %s, m.hint, m.pattern) FROM pgqueue._compile_mask(%s, %s) m"
DATA = "SELECT t.data #>> '{}' FROM pgqueue.tasks t WHERE queue = %s ORDER BY id"


def declare(conn: psycopg.Connection, name: str, type: str = "direct", **options: Any) -> None:
    conn.execute("SELECT pgqueue.declare_exchange(%s, %s, durable => %s)", [name, type, options.get("durable", True)])


def bind(conn: psycopg.Connection, queue: str, exchange: str, key: str = "") -> bool:
    value(conn, "SELECT pgqueue.queue_id(%s)", queue)
    return bool(value(conn, "SELECT pgqueue.bind(%s, %s, %s)", queue, exchange, key))


def publish(conn: psycopg.Connection, exchange: str, key: str, data: str = "data") -> int:
    return int(value(conn, PUBLISH, exchange, key, data))


def fails(conn: psycopg.Connection, sqlstate: str, query: str, *args: Any) -> str:
    with pytest.raises(psycopg.Error) as caught:
        conn.execute(query, args)
    assert caught.value.sqlstate == sqlstate
    return str(caught.value.diag.message_primary)


# --- matching


@pytest.mark.parametrize(
    ("mask", "matching", "others"),
    [
        ("", [""], ["a", "."]),
        ("#", ["", "a", "a.b", ".", "a..b"], []),
        ("*", ["a", "two words"], ["", "a.b", "."]),
        ("a.b", ["a.b"], ["a", "a.b.c", "axb", "A.b"]),
        ("*.*", ["a.b", ".", "a."], ["a", "", "a.b.c"]),
        ("a.*", ["a.b", "a."], ["a", "a.b.c", "ab"]),
        ("*.#", ["a", "a.b", "a.b.c"], [""]),
        ("#.*", ["a", "a.b", "a.b.c"], [""]),
        ("#.#", ["", "a", "a.b.c"], []),
        ("a.#", ["a", "a.b", "a.b.c"], ["ab", "b.a", ""]),
        ("lazy.#", ["lazy", "lazy.dog", "lazy."], ["lazydog", "a.lazy"]),
        ("#.b", ["b", "a.b", "a.a.b"], ["b.a", "ab", ""]),
        ("a.#.z", ["a.z", "a.b.z", "a.b.c.z"], ["a", "z", "az", "a.z.b"]),
        ("a.*.#", ["a.b", "a.b.c"], ["a", "b.a"]),
        ("*.b.*", ["a.b.c"], ["b", "a.b", "a.b.c.d"]),
        ("#.a.#.b.#", ["a.b", "x.a.y.b.z", "a.a.b"], ["b.a", "a"]),
        ("a..#", ["a.", "a..b"], ["a", "a.b"]),
        ("a*.#b", ["a*.#b"], ["ab.b", "axx.b"]),  # part of a word is no wildcard
        ("1+1.(x|y).[z].^$", ["1+1.(x|y).[z].^$"], ["11.x.z."]),
        ("(x|y).*", ["(x|y).z"], ["x.z", "y.z"]),
        ("a\\d.*", ["a\\d.z"], ["a1.z"]),
        ("50%.*", ["50%.x"], ["50 apples.x", "50.x"]),
        ("a_b.*", ["a_b.x"], ["axb.x"]),
        ("größe.*.ß", ["größe.😀.ß"], ["grösse.x.ß"]),
        ("line\nend.*", ["line\nend.x", "line\nend.\n"], ["line"]),
    ],
)
def test_a_topic_mask_selects_routing_keys(
    db: psycopg.Connection, mask: str, matching: list[str], others: list[str]
) -> None:
    asked = {key: value(db, MATCH, "topic", key, mask, "topic", mask) for key in matching + others}
    assert asked == dict.fromkeys(matching, True) | dict.fromkeys(others, False)


@pytest.mark.parametrize(
    ("mask", "matching", "others"),
    [
        ("a/b", ["a/b"], ["a", "a/b/c"]),
        ("#", ["a", "a/b", "/", "/a"], ["$SYS", "$SYS/a"]),
        ("a/#", ["a", "a/", "a/b", "a/b/c"], ["ab", "b/a"]),
        ("+", ["a"], ["a/b", "/a", "$a"]),
        ("+/+", ["a/b", "/a", "a/"], ["a", "a/b/c", "$a/b"]),
        ("/+", ["/a", "/"], ["a", "a/b"]),
        ("a/+/c", ["a/b/c", "a//c"], ["a/c", "a/b/b/c"]),
        ("+/b/#", ["a/b", "a/b/c/d"], ["b", "a/c"]),
        ("$SYS/#", ["$SYS", "$SYS/a"], ["SYS/a"]),
        ("a.b/(x|y)%_/+", ["a.b/(x|y)%_/z"], ["axb/x/z", "a.b/x/z"]),
    ],
)
def test_mqtt_filters(db: psycopg.Connection, mask: str, matching: list[str], others: list[str]) -> None:
    asked = {key: value(db, MATCH, "mqtt", key, mask, "mqtt", mask) for key in matching + others}
    assert asked == dict.fromkeys(matching, True) | dict.fromkeys(others, False)


@pytest.mark.parametrize("mask", ["", "#/a", "a/#/b", "a#", "a/b#", "a+", "+a/b", "a/b+/c", "##", "a/++"])
def test_what_is_no_mqtt_filter(db: psycopg.Connection, mask: str) -> None:
    declare(db, "m", "mqtt"), value(db, "SELECT pgqueue.queue_id('q')")
    assert "no MQTT topic filter" in fails(db, "PQ002", "SELECT pgqueue.bind('q', 'm', %s)", mask)
    assert rows(db, "SELECT * FROM pgqueue.bindings") == []


def test_the_longest_and_worst_mask_is_matched_quickly(db: psycopg.Connection) -> None:
    declare(db, "t", "topic")
    bind(db, "q", "t", ("#.*." * 64)[:-1])
    bind(db, "r", "t", ("#.a." * 64)[:-1])
    db.execute("SET statement_timeout = '10 s'")
    assert publish(db, "t", ("b." * 128)[:-1]) == 1
    assert publish(db, "t", ("a." * 128)[:-1]) == 2


# --- exchanges and bindings


@pytest.mark.parametrize(
    ("type", "key", "reached"),
    [
        ("fanout", "whatever", {"a", "b", "all"}),
        ("direct", "a", {"a"}),
        ("direct", "#", {"all"}),
        ("topic", "a", {"a", "all"}),
    ],
)
def test_types(db: psycopg.Connection, type: str, key: str, reached: set[str]) -> None:
    declare(db, "x", type)
    bind(db, "a", "x", "a"), bind(db, "b", "x", "b"), bind(db, "all", "x", "#")
    assert publish(db, "x", key) == len(reached)
    assert set(column(db, "SELECT queue FROM pgqueue.tasks")) == reached


def test_two_matching_bindings_are_one_copy(db: psycopg.Connection) -> None:
    declare(db, "t", "topic")
    for mask in ("a.b", "a.*", "#", "a.#"):
        assert bind(db, "q", "t", mask) is True
    assert publish(db, "t", "a.b") == 1
    assert len(rows(db, "SELECT FROM pgqueue.tasks")) == 1


def test_the_default_exchange_leads_to_the_queue_of_that_name(db: psycopg.Connection) -> None:
    value(db, "SELECT pgqueue.queue_id('q')")
    assert [publish(db, "", "q"), publish(db, "", "none")] == [1, 0]
    assert column(db, DATA, "q") == ["data"]
    assert column(db, "SELECT name FROM pgqueue.queue") == ["q"]
    for call in ("declare_exchange('')", "bind('q', '')", "unbind('q', '')"):
        fails(db, "PQ001" if "declare" in call else "PQ002", f"SELECT pgqueue.{call}")
    fails(db, "PQ002", "SELECT pgqueue.publish('', 'q', '1', retain => true)")


def test_a_declaration_is_repeated_or_refused(db: psycopg.Connection, connect: Connect) -> None:
    declare(db, "x", "topic"), declare(db, "x", "topic")
    said = fails(db, "PQ030", "SELECT pgqueue.declare_exchange('x', 'fanout')")
    assert said == 'exchange "x" exists: it is topic and durable, not fanout and durable'
    fails(db, "PQ030", "SELECT pgqueue.declare_exchange('x', 'topic', durable => false)")
    declare(db, "mine", durable=False), declare(db, "mine", durable=False)
    fails(connect(), "PQ030", "SELECT pgqueue.declare_exchange('mine', 'direct', durable => false)")
    assert rows(db, "SELECT name, type, durable, bindings, retained FROM pgqueue.exchanges ORDER BY name") == [
        ("mine", "direct", False, 0, 0),
        ("x", "topic", True, 0, 0),
    ]


@pytest.mark.parametrize(
    ("sqlstate", "call"),
    [
        ("PQ001", "declare_exchange(NULL)"),
        ("PQ001", "declare_exchange(repeat('ü', 128))"),
        ("PQ002", "declare_exchange('y', 'headers')"),
        ("PQ002", "declare_exchange('y', NULL)"),
        ("PQ031", "delete_exchange('y')"),
        ("PQ031", "bind('q', 'y')"),
        ("PQ032", "bind('none', 'x')"),
        ("PQ001", "bind('q', 'x', repeat('a', 256))"),
        ("PQ031", "unbind('q', 'y')"),
        ("PQ032", "unbind('none', 'x')"),
        ("PQ031", "publish('y', '', '1')"),
        ("PQ001", "publish('x', repeat('a', 256), '1')"),
        ("PQ001", "publish('x', NULL, '1')"),
        ("PQ001", "publish(NULL, 'k', '1')"),
        ("PQ002", "publish('x', 'k', '1', delay => '-1 s')"),
        ("PQ002", "publish('x', 'k', '1', ttl => '0')"),
        ("PQ031", "publish('y', 'k', '1', retain => true)"),
        ("PQ002", "publish('m', 'a/+', '1')"),
        ("PQ002", "publish('m', '#', '1', retain => true)"),
        ("PQ031", "set_will('y', 'k', '1')"),
        ("PQ002", "set_will('', 'k', '1', retain => true)"),
        ("PQ002", "set_will('m', '#', '1')"),
        ("PQ004", "set_will('x', 'k', '1', session => 1)"),
        ("PQ004", "create_queue('e', exclusive => true, session => 1)"),
        ("PQ032", "delete_queue('none')"),
    ],
)
def test_what_cannot_be_is_refused(db: psycopg.Connection, sqlstate: str, call: str) -> None:
    declare(db, "x"), declare(db, "m", "mqtt"), bind(db, "q", "x", "k")
    before = rows(db, "SELECT * FROM pgqueue.bindings"), rows(db, "SELECT * FROM pgqueue.exchanges")
    fails(db, sqlstate, f"SELECT pgqueue.{call}")
    assert (rows(db, "SELECT * FROM pgqueue.bindings"), rows(db, "SELECT * FROM pgqueue.exchanges")) == before
    assert rows(db, "SELECT FROM pgqueue.task") == rows(db, "SELECT FROM pgqueue.will") == []


def test_keys_of_255_bytes(db: psycopg.Connection) -> None:
    key = "ü" * 127 + "."
    declare(db, "t" * 255, "topic"), bind(db, "q", "t" * 255, key), bind(db, "r", "t" * 255, "#." + key[2:])
    assert publish(db, "t" * 255, key) == 1
    assert publish(db, "t" * 255, key[2:]) == 1


def test_bind_and_unbind(db: psycopg.Connection) -> None:
    declare(db, "x")
    assert [bind(db, "q", "x", "k"), bind(db, "q", "x", "k")] == [True, False]
    assert rows(db, "SELECT exchange, key, queue FROM pgqueue.bindings") == [("x", "k", "q")]
    assert [value(db, "SELECT pgqueue.unbind('q', 'x', 'k')") for _ in range(2)] == [True, False]
    assert publish(db, "x", "k") == 0


def test_options_of_a_publish_and_of_its_queues(db: psycopg.Connection) -> None:
    db.execute("SELECT pgqueue.create_queue('slow', priority => 7, delay => '1 h', ttr => '1 min', ttl => '1 h')")
    value(db, "SELECT pgqueue.queue_id('plain')")
    declare(db, "x", "fanout"), bind(db, "slow", "x"), bind(db, "plain", "x")
    query = """SELECT q.name, t.state, t.priority, t.ttr::text, t.routing_key,
                      round(extract(epoch FROM expires_at - now()) / 600)
                 FROM pgqueue.task t JOIN pgqueue.queue q ON q.id = queue_id ORDER BY 1"""
    publish(db, "x", "k")
    assert rows(db, query) == [("plain", "R", 0, None, "k", None), ("slow", "D", 7, "00:01:00", "k", 12)]
    db.execute("DELETE FROM pgqueue.task")
    db.execute("SELECT pgqueue.publish('x', 'l', '1', priority => 1, delay => '0', ttr => '2 min', ttl => '10 min')")
    assert rows(db, query) == [("plain", "R", 1, "00:02:00", "l", 1), ("slow", "R", 1, "00:02:00", "l", 1)]


def test_a_publish_counts_once_for_each_queue(db: psycopg.Connection) -> None:
    declare(db, "x", "fanout")
    for queue in ("plain", "slow", "short"):
        bind(db, queue, "x")
    for queue, options in ("slow", {"delay": "1 h"}), ("short", {"maxlen": 1}):
        db.execute("SELECT pgqueue.alter_queue(%s, %s)", [queue, Jsonb(options)])
    with db.transaction(force_rollback=True):
        db.execute("DELETE FROM pgqueue.delta")
        assert publish(db, "x", "") == 3
        counted = "SELECT q.name, d.standing, d.delayed, d.verb, d.calls FROM pgqueue.delta d JOIN pgqueue.queue q"
        assert rows(db, f"{counted} ON q.id = d.queue_id ORDER BY q.name") == [
            ("plain", 1, 0, "put", 1),
            ("short", 1, 0, "put", 1),
            ("slow", 0, 1, "put", 1),
        ]
    for _ in range(2):
        publish(db, "x", "")
    assert rows(db, "SELECT queue, ready, delayed, calls -> 'put' FROM pgqueue.stats ORDER BY queue") == [
        ("plain", 2, 0, 2),
        ("short", 1, 0, 2),
        ("slow", 0, 2, 2),
    ]


def unmatched(conn: psycopg.Connection) -> dict[str, int]:
    return dict(rows(conn, "SELECT name, unmatched FROM pgqueue.exchanges"))


def test_messages_that_match_no_binding_are_counted(db: psycopg.Connection) -> None:
    declare(db, "e"), declare(db, "quiet")
    bind(db, "q", "e", "a"), bind(db, "q", "quiet", "a")
    before = value(db, "SELECT clock_timestamp()")
    assert [publish(db, "e", key) for key in ("a", "b", "c")] == [1, 0, 0]
    assert publish(db, "", "no such queue") == 0  # the default exchange has no bindings
    assert unmatched(db) == {"e": 2, "quiet": 0}
    (last,) = column(db, "SELECT unmatched_at FROM pgqueue.exchanges WHERE name = 'e'")
    assert before < last
    assert column(db, "SELECT unmatched_at FROM pgqueue.exchanges WHERE name = 'quiet'") == [None]


def test_the_clean_up_adds_up_what_matched_no_binding(db: psycopg.Connection) -> None:
    declare(db, "e"), declare(db, "f")
    for _ in range(3):
        publish(db, "e", "a")
    publish(db, "f", "a")
    last = column(db, "SELECT unmatched_at FROM pgqueue.exchanges ORDER BY name")
    places = []
    for _ in range(2):  # the second one has nothing to write
        value(db, "SELECT pgqueue.clean_up()")
        places.append(rows(db, "SELECT ctid, exchange, messages FROM pgqueue.unmatched ORDER BY exchange"))
    assert places[0] == places[1]
    assert [row[1:] for row in places[0]] == [("e", 3), ("f", 1)]
    assert column(db, "SELECT unmatched_at FROM pgqueue.exchanges ORDER BY name") == last
    publish(db, "e", "a")
    assert unmatched(db) == {"e": 4, "f": 1}


def test_an_exchange_that_is_declared_again_has_matched_all(db: psycopg.Connection) -> None:
    declare(db, "e")
    publish(db, "e", "a")
    value(db, "SELECT pgqueue.delete_exchange('e')")
    declare(db, "e")
    assert unmatched(db) == {"e": 0}
    publish(db, "e", "a")
    value(db, "SELECT pgqueue.clean_up()")
    assert rows(db, "SELECT exchange, messages FROM pgqueue.unmatched") == [("e", 1)]
    assert unmatched(db) == {"e": 1}


def test_publishers_do_not_wait_for_each_other_to_count(db: psycopg.Connection, connect: Connect) -> None:
    declare(db, "e")
    with connect() as one, connect() as other:
        other.execute("SET lock_timeout = '100ms'")
        with one.transaction():
            publish(one, "e", "a")
            publish(other, "e", "a")
            value(other, "SELECT pgqueue.clean_up()")
    assert unmatched(db) == {"e": 2}


def test_wills_and_dead_letters_that_match_no_binding_are_counted(db: psycopg.Connection, connect: Connect) -> None:
    declare(db, "e")
    other = connect()
    value(other, "SELECT pgqueue.open_session(grace => '0')")
    value(other, "SELECT pgqueue.set_will('e', 'gone', '1')")
    die(other, db)
    sweep(db), sweep(db)
    assert unmatched(db) == {"e": 1}
    value(db, "SELECT pgqueue.create_queue('q', dead_letter => 'e')")
    put(db, "q")
    (id, token) = rows(db, "SELECT id, token FROM pgqueue.take('q')")[0]
    value(db, "SELECT pgqueue.bury(%s, %s)", id, token)
    assert unmatched(db) == {"e": 2}
    assert column(db, "SELECT state FROM pgqueue.tasks") == ["buried"]


def test_publishing_is_part_of_the_transaction(db: psycopg.Connection, connect: Connect) -> None:
    declare(db, "x"), bind(db, "q", "x", "k")
    mine = connect(autocommit=False)
    assert [publish(mine, "x", "k"), publish(mine, "x", "nowhere")] == [1, 0]
    assert rows(db, "SELECT FROM pgqueue.tasks") == []
    mine.commit()
    assert len(rows(db, "SELECT FROM pgqueue.tasks")) == 1


# --- retained messages


def test_a_retained_message_is_given_to_who_is_bound_later_and_once(db: psycopg.Connection) -> None:
    declare(db, "m", "mqtt")
    bind(db, "early", "m", "a/+")
    retain = "SELECT pgqueue.publish('m', %s, to_jsonb(%s::text), retain => true)"
    for key, data in [("a/1", "old"), ("a/1", "new"), ("a/2", "two"), ("b", "other")]:
        db.execute(retain, [key, data])
    assert column(db, DATA, "early") == ["old", "new", "two"]
    bind(db, "late", "m", "a/+")
    assert column(db, DATA, "late") == ["new", "two"]
    bind(db, "late", "m", "a/+"), bind(db, "late", "m", "a/1")  # again, and by one more binding
    assert column(db, DATA, "late") == ["new", "two"]
    bind(db, "late", "m", "#")
    assert column(db, DATA, "late") == ["new", "two", "other"]
    assert column(db, "SELECT retained FROM pgqueue.exchanges") == [3]


def test_null_ends_what_is_retained(db: psycopg.Connection) -> None:
    declare(db, "x")
    db.execute("SELECT pgqueue.publish('x', 'k', '1', retain => true)")
    db.execute("SELECT pgqueue.publish('x', 'k', 'null', retain => true)")
    bind(db, "q", "x", "k")
    assert rows(db, "SELECT FROM pgqueue.tasks") == []


@pytest.mark.parametrize("first", ["bind", "publish"])
def test_a_bind_and_a_retained_publish_do_not_miss_each_other(
    db: psycopg.Connection, connect: Connect, first: str
) -> None:
    """Each open in a transaction while the other comes: the second waits, and sees the first."""
    declare(db, "x"), value(db, "SELECT pgqueue.queue_id('q')")
    calls = {
        "bind": "SELECT pgqueue.bind('q', 'x', 'k')",
        "publish": "SELECT pgqueue.publish('x', 'k', '1', retain => true)",
    }
    one, other = connect(autocommit=False), connect()
    one.execute(calls.pop(first))
    with waiting(other, db, *calls.values()):
        one.commit()
    assert len(rows(db, "SELECT FROM pgqueue.tasks")) == 1


# --- deleting


def test_delete_queue(db: psycopg.Connection) -> None:
    declare(db, "x"), bind(db, "q", "x", "k")
    put(db, "q"), put(db, "q", delay="1 h"), put(db, "q"), put(db, "other")
    id, token = take(db, "q")
    db.execute("SELECT pgqueue.bury(%s)", [id + 2])
    assert "3 tasks, of which 1 are taken" in fails(db, "PQ034", "SELECT pgqueue.delete_queue('q', if_unused => true)")
    assert "3 tasks, of which 1 are taken" in fails(db, "PQ034", "SELECT pgqueue.delete_queue('q')")
    fails(db, "PQ034", "SELECT pgqueue.delete_queue('q', if_unused => true, force => true)")
    assert value(db, "SELECT pgqueue.delete_queue('q', force => true)") == 3
    assert column(db, "SELECT queue FROM pgqueue.tasks") == ["other"]
    assert rows(db, "SELECT * FROM pgqueue.bindings") == rows(db, "SELECT * FROM pgqueue.take") == []
    assert value(db, "SELECT problem FROM pgqueue.ack(%s, %s)", id, token) == "not found"
    fails(db, "PQ032", "SELECT pgqueue.delete_queue('q')")


def test_delete_queue_on_conditions(db: psycopg.Connection) -> None:
    put(db, "q")
    fails(db, "PQ034", "SELECT pgqueue.delete_queue('q', if_empty => true)")
    assert value(db, "SELECT pgqueue.delete_queue('q', if_unused => true)") == 1
    value(db, "SELECT pgqueue.queue_id('q')")
    assert value(db, "SELECT pgqueue.delete_queue('q', if_empty => true, if_unused => true)") == 0


def test_delete_queue_takes_many_tasks(db: psycopg.Connection) -> None:
    db.execute("SELECT pgqueue.put_many('q', (SELECT jsonb_agg(i) FROM generate_series(1, 2500) i))")
    assert value(db, "SELECT pgqueue.delete_queue('q')") == 2500


def test_a_put_that_was_open_goes_with_its_queue(db: psycopg.Connection, connect: Connect) -> None:
    value(db, "SELECT pgqueue.queue_id('q')")
    producer, taker = connect(autocommit=False), connect(autocommit=False)
    put(db, "q"), put(db, "q", delay="1 h")
    put(producer, "q")
    id, token = take(taker, "q")
    assert value(db, "SELECT pgqueue.delete_queue('q')") == 1  # not waited for, neither of them
    producer.commit(), taker.commit()
    assert rows(db, "SELECT FROM pgqueue.tasks") == []
    db.execute("SELECT pgqueue._clean_routes()")
    assert rows(db, "SELECT FROM pgqueue.task") == []
    assert value(taker, "SELECT problem FROM pgqueue.ack(%s, %s)", id, token) == "not found"


def test_delete_exchange(db: psycopg.Connection) -> None:
    declare(db, "x"), bind(db, "q", "x", "k"), put(db, "q")
    db.execute("SELECT pgqueue.publish('x', 'k', '1', retain => true)")
    db.execute("SELECT pgqueue.delete_exchange('x')")
    assert rows(db, "SELECT * FROM pgqueue.bindings") == rows(db, "SELECT * FROM pgqueue.retained") == []
    assert len(rows(db, "SELECT FROM pgqueue.tasks")) == 2


# --- what ends with a session


def sweep(conn: psycopg.Connection) -> None:
    conn.execute("SELECT pgqueue.sweep()")


def test_an_exclusive_queue(db: psycopg.Connection, connect: Connect) -> None:
    owner = connect()
    owner.execute("SELECT pgqueue.open_session(grace => '0')")
    owner.execute("SELECT pgqueue.create_queue('e', exclusive => true)")
    put(db, "e"), put(owner, "e"), put(db, "e")
    for call in ("take('e')", "take_many('{q, e}', 5)", "pop('e')"):
        assert fails(db, "PQ033", f"SELECT * FROM pgqueue.{call}").startswith('queue "e" is exclusive: only session')
    take(owner, "e")
    assert (
        len(rows(owner, "SELECT FROM pgqueue.take_many('{e}', 1)"))
        == len(rows(owner, "SELECT FROM pgqueue.pop('e')"))
        == 1
    )
    die(owner, db)
    sweep(db)
    assert rows(db, "SELECT FROM pgqueue.queue WHERE name = 'e'") == rows(db, "SELECT FROM pgqueue.task") == []


def test_an_exclusive_queue_of_a_session_that_is_gone_is_created_anew(db: psycopg.Connection, connect: Connect) -> None:
    """As after a crash of the server, which empties the table of sessions: no sweep finds one that has died."""
    old, new = connect(), connect()
    old.execute("SELECT pgqueue.create_queue('e', exclusive => true)")
    put(db, "e")
    again = "create_queue('e', exclusive => true, if_not_exists => true)"
    assert "exclusive to another session" in fails(new, "PQ033", f"SELECT pgqueue.{again}")
    fails(new, "PQ003", "SELECT pgqueue.create_queue('e', exclusive => true)")
    old.execute(f"SELECT pgqueue.{again}")
    assert len(rows(db, "SELECT FROM pgqueue.task")) == 1  # it was left as it is
    db.execute("DELETE FROM pgqueue.session WHERE id = (SELECT session_id FROM pgqueue.queue)")
    new.execute(f"SELECT pgqueue.{again}")
    assert rows(db, "SELECT FROM pgqueue.task") == rows(new, "SELECT FROM pgqueue.take('e')") == []
    put(db, "e")
    assert take(new, "e")


def test_an_exclusive_queue_ends_at_a_close(db: psycopg.Connection, connect: Connect) -> None:
    owner = connect()
    owner.execute("SELECT pgqueue.create_queue('e', exclusive => true)")
    owner.execute("SELECT pgqueue.close_session()")
    assert rows(db, "SELECT FROM pgqueue.queue") == []


def test_auto_delete_goes_with_the_last_taker(db: psycopg.Connection, connect: Connect) -> None:
    db.execute("SELECT pgqueue.create_queue('a', auto_delete => true)")
    one, other, idle = connect(), connect(), connect()
    for conn in (one, other, idle):
        conn.execute("SELECT pgqueue.open_session(grace => '0')")
    idle.execute("SELECT pgqueue.close_session()")
    assert len(rows(db, "SELECT FROM pgqueue.queue")) == 1  # nobody took yet
    one.execute("SELECT FROM pgqueue.take('a')")
    other.execute("SELECT FROM pgqueue.take_many('{a}', 2)")
    one.execute("SELECT pgqueue.close_session()")
    assert len(rows(db, "SELECT FROM pgqueue.queue")) == 1
    die(other, db)
    sweep(db)
    assert rows(db, "SELECT FROM pgqueue.queue") == rows(db, "SELECT FROM pgqueue.taker") == []


def test_the_clean_up_leaves_what_belongs_to_living_sessions(db: psycopg.Connection, connect: Connect) -> None:
    """The clean-up ends no session: it finds what sessions left that are gone already."""
    one, other = connect(), connect()
    one.execute("SELECT pgqueue.create_queue('a', auto_delete => true), pgqueue.create_queue('e', exclusive => true)")
    declare(one, "mine", durable=False), bind(db, "a", "mine", "k")
    one.execute("SELECT pgqueue.put_many('a', '[1, 2]'), pgqueue.set_will('mine', 'k', '1')")
    one.execute("SELECT FROM pgqueue.take('a')"), other.execute("SELECT FROM pgqueue.take('a')")
    belongings = ("queue", "task", "take", "taker", "binding", "exchange", "will")
    before = {table: rows(db, f"SELECT t::text FROM pgqueue.{table} t ORDER BY 1") for table in belongings}
    assert all(before.values())
    db.execute("SELECT pgqueue.clean_up()")
    assert {table: rows(db, f"SELECT t::text FROM pgqueue.{table} t ORDER BY 1") for table in belongings} == before


def test_an_exchange_that_is_not_durable(db: psycopg.Connection, connect: Connect) -> None:
    owner = connect()
    owner.execute("SELECT pgqueue.open_session(grace => '0')")
    declare(owner, "mine", durable=False), declare(owner, "kept"), bind(db, "q", "mine", "k")
    die(owner, db)
    sweep(db)
    assert column(db, "SELECT name FROM pgqueue.exchanges") == ["kept"]
    assert rows(db, "SELECT FROM pgqueue.bindings") == []


@pytest.mark.parametrize("retain", [False, True])
def test_a_will_is_for_a_death_and_not_for_a_close(db: psycopg.Connection, connect: Connect, retain: bool) -> None:
    declare(db, "x"), bind(db, "q", "x", "k")
    closing, dying, cleared = connect(), connect(), connect()
    for conn, data in ((closing, "closed"), (dying, "replaced"), (dying, "died"), (cleared, "cleared")):
        conn.execute("SELECT pgqueue.open_session(grace => '0')") if data != "died" else None
        conn.execute("SELECT pgqueue.set_will('x', 'k', to_jsonb(%s::text), retain => %s)", [data, retain])
    assert [value(cleared, "SELECT pgqueue.clear_will()") for _ in range(2)] == [True, False]
    closing.execute("SELECT pgqueue.close_session()")
    die(dying, db), die(cleared, db)
    sweep(db), sweep(db)
    assert column(db, DATA, "q") == ["died"]
    bind(db, "late", "x", "k")
    assert column(db, DATA, "late") == ["died"] * retain
    assert rows(db, "SELECT FROM pgqueue.will") == []


def test_a_will_for_an_exchange_that_is_gone(db: psycopg.Connection, connect: Connect) -> None:
    declare(db, "x")
    dying = connect()
    dying.execute("SELECT pgqueue.open_session(grace => '0')")
    dying.execute("SELECT pgqueue.set_will('x', 'k', '1', retain => true)")
    db.execute("SELECT pgqueue.delete_exchange('x')")
    die(dying, db)
    sweep(db)
    assert rows(db, "SELECT FROM pgqueue.will") == rows(db, "SELECT FROM pgqueue.session") == []


def test_the_sweep_waits_for_nobody(db: psycopg.Connection, connect: Connect) -> None:
    """A retained will, an exclusive queue and an exchange, each locked by an open transaction: later."""
    declare(db, "x"), value(db, "SELECT pgqueue.queue_id('q')")
    dying, busy = connect(), connect(autocommit=False)
    dying.execute("SELECT pgqueue.open_session(grace => '0')")
    dying.execute("SELECT pgqueue.set_will('x', 'k', '1', retain => true)")
    dying.execute("SELECT pgqueue.create_queue('e', exclusive => true)")
    declare(dying, "mine", durable=False), bind(db, "q", "mine", "k")
    put(db, "e")
    for call in ("bind('q', 'x', 'k')", "unbind('q', 'mine', 'k')", "bind('e', 'x', 'k')", "take('q')"):
        busy.execute(f"SELECT pgqueue.{call}")
    die(dying, db)
    db.execute("SET lock_timeout = '1 ms'")
    sweep(db)
    left = "SELECT " + ", ".join(f"(SELECT count(*) FROM pgqueue.{table})" for table in ("will", "queue", "exchange"))
    assert rows(db, left) == [(1, 2, 2)]
    assert rows(db, "SELECT FROM pgqueue.session WHERE id > 0") == []
    busy.commit()
    db.execute("SELECT pgqueue._clean_routes()")
    assert rows(db, left) == [(0, 1, 1)]
    assert column(db, DATA, "q") == ["1"]


def test_an_exchange_and_a_queue_of_it_are_deleted_at_once(db: psycopg.Connection, connect: Connect) -> None:
    """The exchange waits for the queue before it has touched a binding, so they cannot wait for each other."""
    declare(db, "x")
    for queue in ("a", "b"):
        bind(db, queue, "x", "1"), bind(db, queue, "x", "2")
    one, other = connect(autocommit=False), connect()
    one.execute("SELECT pgqueue.delete_queue('b')")
    with waiting(other, db, "SELECT pgqueue.delete_exchange('x')"):
        assert rows(one, "SELECT FROM pgqueue.binding FOR UPDATE NOWAIT") == [(), ()]
        one.commit()
    assert rows(db, "SELECT FROM pgqueue.binding") == rows(db, "SELECT FROM pgqueue.exchange") == []


def test_after_a_crash_of_the_server(db: psycopg.Connection, connect: Connect) -> None:
    """PostgreSQL empties the unlogged tables: whatever belonged to sessions belongs to nobody."""
    owner = connect()
    owner.execute("SELECT pgqueue.create_queue('e', exclusive => true)")
    declare(owner, "mine", durable=False), declare(owner, "kept")
    put(db, "e")
    db.execute("TRUNCATE pgqueue.session, pgqueue.take, pgqueue.will, pgqueue.taker")
    db.execute("SELECT pgqueue._clean_routes()")
    assert rows(db, "SELECT FROM pgqueue.queue") == rows(db, "SELECT FROM pgqueue.task") == []
    assert column(db, "SELECT name FROM pgqueue.exchanges") == ["kept"]


@pytest.mark.parametrize("queue", ["'none'", "NULL"])
def test_a_bind_of_no_queue_is_refused_before_it_waits_for_the_exchange(
    db: psycopg.Connection, connect: Connect, queue: str
) -> None:
    declare(db, "x")
    with connect(autocommit=False) as busy:
        busy.execute("SELECT FROM pgqueue.exchange FOR UPDATE")
        db.execute("SET lock_timeout = '1 ms'")
        with pytest.raises(psycopg.Error) as caught:
            db.execute(f"SELECT pgqueue.bind({queue}, 'x')")
    assert caught.value.sqlstate == "PQ032"
