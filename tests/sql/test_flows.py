"""Tasks that wait for other tasks: what opens them, what buries them, and the races of 4_rules/flows/waiting.sql."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb
from statements import column, put, row, rows, state, take, value
from stepping import waiting

Connect = Callable[..., psycopg.Connection]


def after(conn: psycopg.Connection, *others: int, queue: str = "q", alone: bool = True, **options: Any) -> int:
    names = "".join(f", {name} => %s" for name in options)
    call = f"SELECT id FROM pgqueue.put_flow(%s, '1', after => %s, alone => %s{names})"
    return int(value(conn, call, queue, list(others), alone, *options.values()))


def tick(conn: psycopg.Connection) -> None:
    conn.execute("SELECT pgqueue.promote_all()")


def do(conn: psycopg.Connection, id: int, verb: str = "ack") -> None:
    """Take a ready task and settle it."""
    token = value(conn, "SELECT token FROM pgqueue.take_id(%s)", id)
    assert value(conn, f"SELECT problem FROM pgqueue.{verb}(%s, %s)", id, token) is None


def states(conn: psycopg.Connection, *ids: int) -> list[str | None]:
    return [state(conn, id) for id in ids]


def clean(conn: psycopg.Connection) -> None:
    """Nothing is left of flows."""
    tick(conn)
    tick(conn)
    for table in ("dependency", "dependant", "member", "flow_check", "batch_part"):
        assert rows(conn, f"SELECT * FROM pgqueue.{table}") == [], table


def test_a_chain_goes_on_by_claims_alone(db):
    a = put(db, "q")
    b = after(db, a)
    c = after(db, b)
    assert states(db, a, b, c) == ["ready", "waiting", "waiting"]
    for id in (a, b, c):
        taken = take(db, "q")
        assert taken[0] == id
        assert rows(db, "SELECT id FROM pgqueue.take('q')") == []
        db.execute("SELECT pgqueue.ack(%s, %s)", taken)
    clean(db)


@pytest.mark.parametrize(("before", "behind"), [(0, 0), (2, 0), (0, 2)])
def test_tasks_of_a_batch_are_acked_together_and_counted_once(db, before, behind):
    """All of an ack_many, or with others that are not followed, which it may have first."""
    others = before + behind
    batch = value(db, "SELECT pgqueue.create_batch()")
    db.execute("SELECT pgqueue.put_many('q', %s)", (Jsonb([0] * before),))
    db.execute("SELECT pgqueue.put_flow_many('q', '[1, 2, 3]', batch => %s)", (batch,))
    db.execute("SELECT pgqueue.put_many('q', %s)", (Jsonb([0] * behind),))
    value(db, "SELECT total FROM pgqueue.close_batch(%s)", batch)
    taken = rows(db, "SELECT id, token FROM pgqueue.take_many(ARRAY ['q'], 10)")
    assert len(taken) == 3 + others
    assert rows(db, "SELECT * FROM pgqueue.ack_many(%s, %s)", *map(list, zip(*taken, strict=True))) == []
    tick(db)
    assert row(db, "SELECT state, done FROM pgqueue.batches") == ("done", 3)
    counted = row(db, "SELECT ready, taken, (calls ->> 'ack')::int FROM pgqueue.stats WHERE queue = 'q'")
    assert counted == (0, 0, 3 + others)


@pytest.mark.slow
@pytest.mark.parametrize("order", [1, -1])
def test_what_waits_for_a_batch_goes_on_by_claims_alone_in_whatever_order_its_tasks_end(db, order):
    """Open tasks far above say that the end is not near; those below do not."""
    batch = value(db, "SELECT pgqueue.create_batch()")
    ids = value(db, "SELECT pgqueue.put_flow_many('q', %s, batch => %s)", Jsonb([0] * 1000), batch)
    value(db, "SELECT total FROM pgqueue.close_batch(%s)", batch)
    last = after(db, batch)
    tokens = dict(rows(db, "SELECT id, token FROM pgqueue.take_many(ARRAY ['q'], 1000)"))
    for id in ids[::order]:
        assert rows(db, "SELECT * FROM pgqueue.ack_many(%s, %s)", [id], [tokens[id]]) == []
    assert take(db, "q")[0] == last
    db.execute("SELECT pgqueue.delete(%s)", [last])


def test_fan_in_waits_for_all(db):
    others = [put(db, "other") for _ in range(3)]
    d = after(db, *others)
    for id in others:
        assert state(db, d) == "waiting"
        do(db, id)
        tick(db)
    assert state(db, d) == "ready"


@pytest.mark.parametrize("claim", [
    "SELECT id FROM pgqueue.take('q')",
    "SELECT id FROM pgqueue.take_many('{q,other}', 5)",
    "SELECT id FROM pgqueue.pop('q')",
    "SELECT id FROM pgqueue.claim_messages('q', 5)",
])  # fmt: skip
def test_every_claim_opens_what_waits_no_more(db, claim):
    a = put(db, "other")
    d = after(db, a)
    db.execute("SELECT pgqueue.delete(%s)", [put(db, "q")])
    do(db, a)
    assert state(db, d) == "waiting"
    assert column(db, claim) == [d]


def test_what_is_gone_or_kept_as_done_counts_as_done(db):
    gone, _ = put(db, "q"), db.execute("SELECT pgqueue.create_queue('kept', keep_done => '1 h')")
    do(db, gone)
    kept = put(db, "kept")
    do(db, kept)
    assert state(db, after(db, gone, kept)) == "ready"


def fail(db: psycopg.Connection, id: int, how: str) -> None:
    if how == "bury":
        db.execute("SELECT pgqueue.bury(%s, error => 'boom')", [id])
    elif how == "delete":
        db.execute("SELECT pgqueue.delete(%s)", [id])
    elif how == "expire":
        db.execute("UPDATE pgqueue.task SET expires_at = now() WHERE id = %s", [id])
        tick(db)
    else:
        db.execute("SELECT pgqueue._end_cancelled(queue_id, ARRAY [id], 'no') FROM pgqueue.task WHERE id = %s", [id])
    tick(db)


@pytest.mark.parametrize("how", ["bury", "delete", "expire", "cancel"])
@pytest.mark.parametrize(("policy", "then"), [("wait", "waiting"), ("bury", "buried"), ("run", "ready")])
def test_what_a_failure_does(db, policy, then, how):
    a, b = put(db, "other"), put(db, "other")
    d = after(db, a, b, on_failure=policy)
    last = after(db, d, on_failure="bury")
    fail(db, a, how)
    if policy == "run":
        assert state(db, d) == "waiting"  # for b
        do(db, b)
        tick(db)
    if policy == "wait" and how != "bury":
        then = "buried"  # it would wait for ever
    assert states(db, d, last) == [then, then if then == "buried" else "waiting"]
    if then == "buried":
        assert f"task {a}, for which this task waited," in value(db, "SELECT error FROM pgqueue.tasks WHERE id = %s", d)
        assert value(db, "SELECT state FROM pgqueue.kick_task(%s)", d) == "ready"  # whatever a is
        do(db, d)
        tick(db)


def test_a_failed_task_that_is_kicked_and_done_ends_the_wait(db):
    a = put(db, "other")
    d = after(db, a)
    fail(db, a, "bury")
    db.execute("SELECT pgqueue.kick_task(%s)", [a])
    tick(db)
    assert state(db, d) == "waiting"
    do(db, a)
    tick(db)
    assert state(db, d) == "ready"


def test_a_task_that_is_buried_already_counts_as_failed(db):
    a = put(db, "other")
    db.execute("SELECT pgqueue.bury(%s)", [a])
    policies = ("wait", "bury", "run")
    assert states(db, *(after(db, a, on_failure=policy) for policy in policies)) == ["waiting", "buried", "ready"]


def test_a_retry_is_no_failure(db):
    a = put(db, "other")
    d = after(db, a, on_failure="bury")
    token = value(db, "SELECT token FROM pgqueue.take_id(%s)", a)
    db.execute("SELECT pgqueue.release(%s, %s, delay => '1 h', error => 'again')", [a, token])
    tick(db)
    assert state(db, d) == "waiting"


def test_a_dead_letter_is_a_failure_that_its_ack_mends(db):
    db.execute("SELECT pgqueue.queue_id('dead')")
    db.execute("SELECT pgqueue.create_queue('other', dead_letter => '', dead_letter_key => 'dead')")
    a = put(db, "other")
    d, run = after(db, a), after(db, a, on_failure="run")
    do(db, a, "bury")
    tick(db)
    assert states(db, d, run) == ["waiting", "ready"]
    do(db, a)
    tick(db)
    assert state(db, d) == "ready"


@pytest.mark.parametrize("call", ["truncate_queue('other')", "delete_queue('other')"])
def test_a_queue_that_goes_with_its_tasks_fails_them(db, call):
    d = after(db, put(db, "other"))
    db.execute(f"SELECT pgqueue.{call}")
    tick(db)
    assert state(db, d) == "buried"


def test_dependants_that_go_leave_nothing(db):
    a = put(db, "other")
    ids = [after(db, a, queue=name) for name in ("x", "y", "z")]
    db.execute("SELECT pgqueue.delete(%s)", [ids[0]])
    db.execute("SELECT pgqueue.delete_queue('y')")
    db.execute("SELECT pgqueue.truncate_queue('z')")
    clean(db)
    do(db, a)
    clean(db)


def test_delay_run_at_and_ttl_count_from_the_end_of_the_others(db):
    a = put(db, "other")
    delayed = after(db, a, delay="1 h", ttl="1 h")
    moment = after(db, a, run_at=value(db, "SELECT now() + interval '1 h'"))
    past = after(db, a, run_at=value(db, "SELECT now() - interval '1 h'"), ttl="1 h")
    assert rows(db, "SELECT run_at, expires_at FROM pgqueue.tasks WHERE queue = 'q' AND expires_at IS NOT NULL") == []
    do(db, a)
    tick(db)
    assert states(db, delayed, moment, past) == ["delayed", "delayed", "ready"]
    query = "SELECT expires_at - run_at, run_at > now() + interval '59 min' FROM pgqueue.tasks WHERE id = %s"
    assert row(db, f"SELECT x.a::text, x.b FROM ({query}) x(a, b)", delayed) == ("01:00:00", True)
    assert value(db, "SELECT expires_at > now() + interval '59 min' FROM pgqueue.tasks WHERE id = %s", past)


def test_a_dependant_in_a_lane_stands_behind_others_when_it_is_opened(db):
    a, head = put(db, "other"), put(db, "q", lane="l")
    d = after(db, a, lane="l")
    do(db, a)
    tick(db)
    assert states(db, head, d) == ["ready", "blocked"]
    do(db, head)
    assert state(db, d) == "ready"


def test_a_key_that_exists_waits_for_nothing_new(db):
    a = put(db, "other")
    there = put(db, "q", key="k")
    found = row(db, "SELECT id, existed FROM pgqueue.put_flow('q', '2', after => %s, key => 'k')", [a])
    assert found == (there, True)
    first = after(db, a, key="new")
    assert after(db, a, key="new") == first
    assert state(db, there) == "ready"


def test_the_counts_stay_right(db):
    a = put(db, "q")
    after(db, a), after(db, a, delay="1 h"), after(db, a, on_failure="bury")
    db.execute("SELECT pgqueue.bury(%s)", [a])
    tick(db)
    query = "SELECT standing, delayed, buried, blocked FROM pgqueue.{}(NULL)"
    assert row(db, query.format("_known")) == row(db, query.format("_count_anew")) == (0, 0, 2, 2)


# --- results


def test_the_results_of_predecessors_are_kept_for_as_long_as_they_are_needed(db):
    a, b, c = put(db, "a"), put(db, "b"), put(db, "c")
    d = after(db, c, a, b, on_failure="run")
    for id, call in ((a, "finish(%s, %s, result => '{\"n\": 1}', keep => '1 ms')"), (c, "fail(%s, %s, 'boom')")):
        token = value(db, "SELECT token FROM pgqueue.take_id(%s)", id)
        db.execute(f"SELECT pgqueue.{call}", [id, token])
    do(db, b)
    db.execute("SELECT pgqueue.clean_up()")
    tick(db)
    _, token = take(db, "q")
    query = "SELECT on_id, state, queue, result, error FROM pgqueue.predecessors(%s, %s)"
    assert rows(db, query, d, token) == [
        (c, "failed", "c", None, "boom"),
        (a, "done", "a", {"n": 1}, None),
        (b, "done", None, None, None),
    ]
    db.execute("SELECT pgqueue.ack(%s, %s)", [d, token])
    clean(db)
    db.execute("SELECT pgqueue.clean_up()")
    assert column(db, "SELECT task_id FROM pgqueue.result") == [c]  # for its hour


def finish(conn: psycopg.Connection, id: int, keep: str = "1 ms") -> None:
    token = value(conn, "SELECT token FROM pgqueue.take_id(%s)", id)
    conn.execute("SELECT pgqueue.finish(%s, %s, result => '1', keep => %s)", [id, token, keep])


def results(conn: psycopg.Connection) -> list[int]:
    """The tasks whose results are left after a cleaning."""
    conn.execute("SELECT pgqueue.clean_up()")
    return column(conn, "SELECT task_id FROM pgqueue.result")


@pytest.mark.parametrize("first", [0, 1])
def test_a_result_is_kept_for_dependants_that_end_one_after_another(db, first):
    """D is put after A when it has ended: in no order of B and D may the time of A's result be lost."""
    a = put(db, "a")
    b = after(db, a)
    finish(db, a)
    ids = [b, after(db, a)]
    tick(db)
    for id in (ids[first], ids[1 - first]):
        assert results(db) == [a]
        do(db, id)
        tick(db)
    assert results(db) == []
    clean(db)


def test_two_ticks_that_forget_the_last_two_dependants_at_once_keep_the_result_no_longer(db, connect):
    a = put(db, "a")
    b, c = after(db, a), after(db, a)
    finish(db, a)
    tick(db)
    do(db, b)
    do(db, c)
    other = connect(autocommit=False)
    other.execute("SELECT pgqueue._forget_dependants(%s)", [[b]])
    db.execute("SET statement_timeout = '5 s'")
    tick(db)
    other.commit()
    tick(db)
    assert results(db) == []
    clean(db)


def is_forgotten_without_a_wait(db, dependant, caller):
    """A tick does not wait for the caller's open transaction, and one after its end forgets the dependant."""
    db.execute("SELECT pgqueue.delete(%s)", [dependant])
    db.execute("SET statement_timeout = '5 s'")
    tick(db)
    caller.commit()
    tick(db)
    assert results(db) == []
    clean(db)


@pytest.mark.parametrize("how", ["ack", "finish"])
def test_a_tick_does_not_wait_for_an_open_end_to_forget_a_dependant(db, connect, how):
    """T1 ends A and stays open; B, which waits for A, is deleted meanwhile."""
    a = put(db, "a")
    b = after(db, a)
    caller = connect(autocommit=False)
    {"ack": do, "finish": finish}[how](caller, a)
    is_forgotten_without_a_wait(db, b, caller)


def test_a_tick_does_not_wait_for_a_result_that_is_just_stored_again(db, connect):
    """A has failed, is kicked, and T1 finishes it and stays open; B, which waits for A, is deleted meanwhile."""
    a = put(db, "a")
    b = after(db, a, on_failure="run")
    db.execute("SELECT pgqueue.fail(%s, NULL, 'boom', keep => '1 ms')", [a])
    db.execute("SELECT pgqueue.kick_task(%s)", [a])
    caller = connect(autocommit=False)
    finish(caller, a)
    is_forgotten_without_a_wait(db, b, caller)


# --- graphs in one call


def test_a_graph_in_one_call(db):
    puts = [
        {"queue": "q", "data": "extract"},
        {"queue": "q", "data": "left", "after": [-1]},
        {"queue": "q", "data": "right", "after": [-1]},
        {"queue": "q", "data": "load", "after": [-2, -3], "on_failure": "bury"},
    ]
    ids = value(db, "SELECT pgqueue.put_graph(%s, alone => true)", Jsonb(puts))
    assert states(db, *ids) == ["ready", "waiting", "waiting", "waiting"]
    order = []
    while taken := rows(db, "SELECT id, token, data FROM pgqueue.take('q')"):
        order.append(taken[0][2])
        db.execute("SELECT pgqueue.ack(%s, %s)", taken[0][:2])
    assert order == ["extract", "left", "right", "load"]
    clean(db)


@pytest.mark.parametrize("puts", [
    [{"queue": "q", "data": 1, "after": [-1]}],
    [{"queue": "q", "data": 1, "after": [-2]}, {"queue": "q", "data": 1, "after": [-1]}],
])  # fmt: skip
def test_a_circle_cannot_be_put(db, puts):
    with pytest.raises(psycopg.Error, match="were put before in this call") as error:
        db.execute("SELECT pgqueue.put_graph(%s)", [Jsonb(puts)])
    assert error.value.sqlstate == "PQ044"
    assert rows(db, "SELECT * FROM pgqueue.task") == []


@pytest.mark.parametrize(("arguments", "sqlstate"), [
    ("after => '{99}'", "PQ044"),
    ("after => '{0}'", "PQ044"),
    ("after => '{-1}'", "PQ044"),
    ("after => '{NULL}'", "PQ002"),
    ("on_failure => 'skip'", "PQ002"),
    ("on_failure => NULL", "PQ002"),
    ("batch => 99", "PQ045"),
    ("after => '{1}', if_exists => 'replace', key => 'k'", "PQ002"),
    ("after => '{1}', delay => '-1 s'", "PQ002"),
    ("after => '{1}', delay => '1 s', run_at => now()", "PQ002"),
])  # fmt: skip
def test_bad_arguments(db, arguments, sqlstate):
    put(db, "q")
    for call in ("put_flow('q', '1'", "put_flow_many('q', '[1]'"):
        if "many" in call:
            arguments = arguments.replace("key => 'k'", "keys => '{k}'")
        with pytest.raises(psycopg.Error) as error:
            db.execute(f"SELECT pgqueue.{call}, {arguments})")
        assert error.value.sqlstate == sqlstate


# --- races


def test_an_open_put_after_a_task_does_not_hold_up_its_ack(db, connect):
    """T1 puts D after A in a long transaction; T2 acks A meanwhile. D is linked once T1 commits, and A is gone then."""
    a = put(db, "other")
    caller = connect(autocommit=False)
    d = after(caller, a, alone=False)
    db.execute("SET statement_timeout = '5 s'")
    do(db, a)
    caller.commit()
    assert state(db, d) == "waiting"
    tick(db)
    assert state(db, d) == "ready"


def test_an_open_put_after_a_task_that_lives_on_is_linked_after_its_commit(db, connect):
    a = put(db, "other")
    caller = connect(autocommit=False)
    d = after(caller, a, alone=False)
    tick(db)
    caller.commit()
    tick(db)
    assert column(db, "SELECT state FROM pgqueue.dependency") == ["O"]
    do(db, a)
    assert take(db, "q")[0] == d


def test_a_put_after_a_task_that_is_being_acked_waits_for_neither(db, connect):
    """T1 has acked A and is open when T2 puts D after A: D waits until T1 has ended, whatever the ticks do."""
    a, b = put(db, "other"), put(db, "other")
    acker = connect(autocommit=False)
    for id in (a, b):
        do(acker, id)
    first = after(db, a)
    tick(db)
    assert state(db, first) == "waiting"
    acker.commit()
    tick(db)
    assert state(db, first) == "ready"


def test_a_rolled_back_ack_leaves_its_dependant_waiting(db, connect):
    a = put(db, "other")
    acker = connect(autocommit=False)
    do(acker, a)
    d = after(db, a)
    tick(db)
    acker.rollback()
    tick(db)
    assert (state(db, d), column(db, "SELECT state FROM pgqueue.dependency")) == ("waiting", ["O"])
    do(db, a)
    assert take(db, "q")[0] == d


def test_two_ends_at_once_open_their_dependant(db, connect):
    """T1 ends A and T2 ends B: each sees the other's task as open, and whichever commits last has a check left."""
    a, b = put(db, "other"), put(db, "other")
    d = after(db, a, b)
    first, second = connect(autocommit=False), connect(autocommit=False)
    do(first, a)
    do(second, b)
    tick(db)
    first.commit()
    tick(db)
    assert state(db, d) == "waiting"
    second.commit()
    assert take(db, "q")[0] == d


def test_no_transaction_drops_its_own_check(db, connect):
    """T1 ends A and claims before its commit. Its look does not show that T2 has ended B meanwhile."""
    a, b = put(db, "other"), put(db, "other")
    d = after(db, a, b)
    first, second = connect(autocommit=False), connect(autocommit=False)
    do(first, a)
    do(second, b)
    assert rows(first, "SELECT id FROM pgqueue.take('q')") == []  # looks at its own check
    second.commit()
    tick(db)  # looks at the check of T2, and does not see T1
    first.commit()
    assert take(db, "q")[0] == d


def test_a_dependant_that_is_locked_is_opened_by_a_later_tick(db, connect):
    a = put(db, "other")
    d = after(db, a)
    holder = connect(autocommit=False)
    holder.execute("SELECT FROM pgqueue.task WHERE id = %s FOR UPDATE", [d])
    do(db, a)
    tick(db)
    assert state(db, d) == "waiting"
    holder.rollback()
    tick(db)
    assert state(db, d) == "ready"


def test_a_graph_in_a_transaction_that_rolls_back_was_never_there(db, connect):
    caller = connect(autocommit=False)
    a = put(caller, "q")
    after(caller, a, alone=False)
    caller.rollback()
    clean(db)
    assert rows(db, "SELECT * FROM pgqueue.task") == []


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_puts_and_acks_above_read_committed(db, connect, level):
    caller = connect()
    caller.execute(f"SET default_transaction_isolation = '{level.lower()}'")
    a, b = put(caller, "other"), put(caller, "other")
    d = after(caller, a, b)
    do(caller, a)
    do(caller, b)
    tick(db)
    assert state(db, d) == "ready"


def test_a_claim_of_an_open_transaction_holds_up_no_ack(db, connect):
    """T1 claims while D is not linked yet to A, and stays open; T2 acks A. Only ticks lock the row of A."""
    a = put(db, "other")
    caller = connect(autocommit=False)
    d = after(caller, a, alone=False)
    caller.commit()
    assert rows(caller, "SELECT id FROM pgqueue.take('q')") == []
    db.execute("SET statement_timeout = '5 s'")
    do(db, a)
    tick(db)
    assert state(db, d) == "ready"


def test_a_mark_while_a_task_is_acked_is_seen(db, connect):
    """T1 has marked A and is about to commit; the ack of T2 waits for that, and takes the long way."""
    a = put(db, "other")
    token = value(db, "SELECT token FROM pgqueue.take_id(%s)", a)
    caller = connect(autocommit=False)
    d = after(caller, a, alone=True)
    with waiting(connect(), db, "SELECT FROM pgqueue.ack(%s, %s)", a, token):
        caller.commit()
    assert take(db, "q")[0] == d


@pytest.mark.slow
def test_a_task_after_10000_tasks_is_put_in_proportion_to_one_after_1000(db: psycopg.Connection) -> None:
    ids = value(db, "SELECT pgqueue.put_many('q', (SELECT jsonb_agg(i) FROM generate_series(1, 11000) i))")

    def seconds(others: list[int]) -> float:
        began = time.perf_counter()
        after(db, *others, queue="last")
        return time.perf_counter() - began

    few = seconds(ids[:1000])
    assert seconds(ids[1000:]) < 40 * few  # ten times as many; it was 100 times as long
