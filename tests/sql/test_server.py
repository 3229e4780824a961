"""The number of a server: ids that name it, and the refusal of ids that name another one."""

from __future__ import annotations

import json

import psycopg
import pytest
from eventually import eventually
from statements import put, row, rows, take, value
from verb_calls import BY_ID, SETTLING

FIRST = (3 << 43) + 1  # the first id of server 3
ELSEWHERE = (1 << 43) + 1  # an id of server 1

#: Calls for a task or a batch that this server does not have, besides those of the table of verbs.
OTHERS = {
    "cancel_many": "FROM pgqueue.cancel_many(%(ids)s)",
    "outcome": "FROM pgqueue.outcome(%(id)s)",
    "await_outcome": "FROM pgqueue.await_outcome(%(id)s)",
    "own_id": "FROM pgqueue.own_id(%(id)s)",
    "why": "FROM pgqueue.why(%(id)s)",
    "neighbours": "FROM pgqueue.neighbours(%(id)s)",
    "predecessors": "FROM pgqueue.predecessors(%(id)s, %(token)s)",
    "progress": "FROM pgqueue.progress(%(id)s, %(token)s)",
    "finish": "FROM pgqueue.finish(%(id)s, %(token)s)",
    "finish_many": "FROM pgqueue.finish_many(%(ids)s, %(tokens)s, NULL, '[1]')",
    "get_step": "FROM pgqueue.get_step(%(id)s, %(token)s, name => 's')",
    "record_step": "FROM pgqueue.record_step(%(id)s, %(token)s, name => 's')",
    "delete_message": "FROM pgqueue.delete_message('q', %(id)s)",
    "delete_messages": "FROM pgqueue.delete_messages('q', %(ids)s)",
}
OF_BATCHES = {
    "close_batch": "FROM pgqueue.close_batch(%(id)s)",
    "delete_batch": "FROM pgqueue.delete_batch(%(id)s)",
    "put_flow": "FROM pgqueue.put_flow('q', '1', batch => %(id)s)",
}
WAITING = {
    "put_flow": "FROM pgqueue.put_flow('q', '1', after => %(ids)s)",
    "put_flow_many": "FROM pgqueue.put_flow_many('q', '[1]', after => %(ids)s)",
    "put_graph": "FROM pgqueue.put_graph(%(graph)s)",
}


@pytest.fixture
def numbered(db: psycopg.Connection) -> psycopg.Connection:
    """A connection to server 3."""
    db.execute("SELECT pgqueue.set_server(3)")
    return db


def names(id: int) -> dict[str, object]:
    graph = json.dumps([{"queue": "q", "data": 1, "after": [id]}])
    return {"id": id, "ids": [id], "token": 1, "tokens": [1], "graph": graph}


def refused(conn: psycopg.Connection, call: str, id: int = ELSEWHERE) -> tuple[str | None, str | None]:
    with pytest.raises(psycopg.Error) as error:
        conn.execute(f"SELECT {call}", names(id))  # type: ignore[arg-type]
    return error.value.sqlstate, error.value.diag.message_primary


# --- numbers


def test_ids_of_tasks_and_batches_begin_behind_the_number(numbered: psycopg.Connection) -> None:
    assert value(numbered, "SELECT pgqueue.server_number()") == 3
    assert [put(numbered, "q"), value(numbered, "SELECT pgqueue.create_batch()"), put(numbered, "q")] == [
        FIRST + n for n in range(3)
    ]
    assert FIRST >> 43 == 3


def test_a_server_without_a_number_is_server_0(db: psycopg.Connection) -> None:
    assert (put(db, "q"), value(db, "SELECT pgqueue.server_number()")) == (1, 0)


@pytest.mark.parametrize("number", [1, 1023])
def test_each_number_keeps_to_its_own_ids(db: psycopg.Connection, number: int) -> None:
    db.execute("SELECT pgqueue.set_server(%s)", [number])
    low, high = rows(db, "SELECT min_value, max_value FROM pg_sequences WHERE sequencename = 'task_id_seq'")[0]
    assert (low, high) == ((number << 43) + 1, ((number + 1) << 43) - 1)
    assert high < 2**53
    db.execute("SELECT setval('pgqueue.task_id_seq', %s)", [high])
    with pytest.raises(psycopg.errors.SequenceGeneratorLimitExceeded):
        put(db, "q")


def test_the_ids_of_server_0_end_before_those_of_server_1(db: psycopg.Connection) -> None:
    high = value(db, "SELECT max_value FROM pg_sequences WHERE sequencename = 'task_id_seq'")
    assert high == (1 << 43) - 1


@pytest.mark.parametrize("number", [0, -1, 1024, None])
def test_other_numbers_are_refused(db: psycopg.Connection, number: int | None) -> None:
    assert refused(db, f"pgqueue.set_server({'NULL' if number is None else number})")[0] == "PQ002"


def test_the_same_number_again_changes_nothing(numbered: psycopg.Connection) -> None:
    put(numbered, "q")
    numbered.execute("SELECT pgqueue.set_server(3)")
    assert put(numbered, "q") == FIRST + 1


def test_another_number_is_refused(numbered: psycopg.Connection) -> None:
    assert refused(numbered, "pgqueue.set_server(4)") == (
        "PQ048",
        "this is server 3 already, so it cannot become server 4",
    )
    assert value(numbered, "SELECT pgqueue.server_number()") == 3


@pytest.mark.parametrize("used", ["pgqueue.put('q', '1')", "pgqueue.create_batch()"])
def test_a_server_that_has_given_an_id_gets_no_number(db: psycopg.Connection, used: str) -> None:
    """Also if the task is gone: results and dependants may know its id."""
    with db.transaction(force_rollback=True):
        db.execute(f"SELECT {used}")
    state, message = refused(db, "pgqueue.set_server(3)")
    assert state == "PQ048"
    assert "the last with the id 1" in str(message)


def test_only_the_owner_gives_a_number(db: psycopg.Connection, stranger) -> None:
    conn = stranger()
    db.execute(f"SELECT pgqueue.grant_to('{conn.info.user}')")
    assert refused(conn, "pgqueue.set_server(3)")[0] == "42501"
    assert value(conn, "SELECT pgqueue.server_number()") == 0
    db.execute(f"SELECT pgqueue.revoke_from('{conn.info.user}')")


def waits_for_a_lock(db: psycopg.Connection, conn: psycopg.Connection) -> bool:
    query = "SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = %s"
    return bool(value(db, query, conn.info.backend_pid))


def test_a_put_that_is_under_way_is_waited_for(db: psycopg.Connection, connect, threads) -> None:
    """Else its task of server 0 would be committed into server 3."""
    putting, numbering = connect(autocommit=False), connect()
    put(putting, "q")
    done = threads.submit(refused, numbering, "pgqueue.set_server(3)")
    eventually(lambda: waits_for_a_lock(db, numbering))
    putting.commit()
    assert done.result(30)[0] == "PQ048"
    assert value(db, "SELECT pgqueue.server_number()") == 0


def test_a_put_waits_for_a_number_that_is_being_given(db: psycopg.Connection, connect, threads) -> None:
    putting, numbering = connect(), connect(autocommit=False)
    numbering.execute("SELECT pgqueue.set_server(3)")
    done = threads.submit(put, putting, "q")
    eventually(lambda: waits_for_a_lock(db, putting))
    numbering.commit()
    assert done.result(30) == FIRST


def test_of_two_numbers_at_once_the_first_stays(db: psycopg.Connection, connect, threads) -> None:
    one, other = connect(autocommit=False), connect()
    one.execute("SELECT pgqueue.set_server(3)")
    done = threads.submit(refused, other, "pgqueue.set_server(4)")
    eventually(lambda: waits_for_a_lock(db, other))
    one.commit()
    assert done.result(30)[0] == "PQ048"
    assert value(db, "SELECT pgqueue.server_number()") == 3


def test_the_same_number_twice_at_once_loses_no_id(db: psycopg.Connection, connect, threads) -> None:
    """The second call finds the number given, and must not begin the ids anew."""
    one, other = connect(autocommit=False), connect()
    one.execute("SELECT pgqueue.set_server(3)")
    done = threads.submit(other.execute, "SELECT pgqueue.set_server(3)")
    eventually(lambda: waits_for_a_lock(db, other))
    put(one, "q")
    one.commit()
    done.result(30)
    assert put(db, "q") == FIRST + 1


# --- ids of other servers


@pytest.mark.parametrize("verb", SETTLING | BY_ID)
def test_no_verb_takes_a_task_of_another_server(db: psycopg.Connection, verb: str) -> None:
    assert refused(db, (SETTLING | BY_ID)[verb]) == (
        "PQ047",
        f"task {ELSEWHERE} belongs to server 1, this is server 0: call that one",
    )


@pytest.mark.parametrize("call", OTHERS)
def test_no_other_call_takes_a_task_of_another_server(db: psycopg.Connection, call: str) -> None:
    assert refused(db, OTHERS[call])[0] == "PQ047"


@pytest.mark.parametrize("call", OF_BATCHES)
def test_no_call_takes_a_batch_of_another_server(db: psycopg.Connection, call: str) -> None:
    assert refused(db, OF_BATCHES[call]) == (
        "PQ045",
        f"batch {ELSEWHERE} belongs to server 1, this is server 0: call that one",
    )


@pytest.mark.parametrize("call", WAITING)
@pytest.mark.parametrize("id", [1, ELSEWHERE, (1023 << 43) + 5])
def test_no_task_waits_for_a_task_of_another_server(numbered: psycopg.Connection, call: str, id: int) -> None:
    put(numbered, "q")
    state, message = refused(numbered, WAITING[call], id)
    assert (state, message and message.partition(":")[0]) == (
        "PQ044",
        f"task {id} belongs to server {id >> 43}, this is server 3",
    )


@pytest.mark.parametrize("id", [FIRST - 1, FIRST + 1, FIRST + 2**43 - 2, 0, -1, 2**60])
def test_a_task_that_was_never_put_is_told_as_before(numbered: psycopg.Connection, id: int) -> None:
    put(numbered, "q")
    expected = "belongs to server 0" if id == 0 else "was never put"
    state, message = refused(numbered, WAITING["put_flow"], id)
    assert state == "PQ044"
    assert expected in str(message)


def test_tasks_of_this_server_wait_for_each_other(numbered: psycopg.Connection) -> None:
    first, batch = put(numbered, "q"), value(numbered, "SELECT pgqueue.create_batch()")
    numbered.execute("SELECT pgqueue.close_batch(%s)", [batch])
    call = "SELECT state FROM pgqueue.put_flow('q', '1', after => %s)"
    assert row(numbered, call, [first, batch]) == ("waiting",)


def test_a_task_of_this_server_that_is_gone_is_not_found(numbered: psycopg.Connection) -> None:
    put(numbered, "q")
    id, token = take(numbered, "q")
    assert row(numbered, "SELECT problem FROM pgqueue.ack(%s, %s)", id, token) == (None,)
    assert row(numbered, "SELECT problem FROM pgqueue.ack(%s, %s)", id, token) == ("not found",)
    assert row(numbered, "SELECT problem FROM pgqueue.cancel(%s)", id) == ("not found",)
    assert row(numbered, "SELECT state FROM pgqueue.outcome(%s)", id) == ("unknown",)


def test_nothing_is_settled_with_a_task_of_another_server(db: psycopg.Connection) -> None:
    """The call fails as a whole: a list of tasks of two servers is a mistake of the caller's."""
    put(db, "q")
    id, token = take(db, "q")
    with pytest.raises(psycopg.Error) as error:
        db.execute("SELECT pgqueue.ack_many(%s, %s)", [[id, ELSEWHERE], [token, 1]])
    assert error.value.sqlstate == "PQ047"
    assert row(db, "SELECT problem FROM pgqueue.ack(%s, %s)", id, token) == (None,)
