"""Schedules in SQL: which call fires, what it puts, what is refused, and two clocks at once."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from eventually import eventually
from psycopg.types.json import Jsonb
from statements import column, notifications, row, rows, value

Connect = Callable[..., psycopg.Connection]
MakeRole = Callable[..., str]

SET = "SELECT pgqueue.set_schedule('s', 'q', '1', every => '1 h'%s)"
FIRE = (
    "SELECT outcome, ids, problem FROM pgqueue.fire_schedule('s', %s, %s::timestamptz, %s::timestamptz[],"
    " %s::timestamptz)"
)
READ = """
    SELECT coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0) FROM pg_stat_xact_user_tables
     WHERE schemaname = 'pgqueue' AND relname = 'schedule'"""


def due(db: psycopg.Connection, ago: str = "1 s", **columns: Any) -> tuple[int, str]:
    """Let the schedule s have been due for so long. Returns revision and next_at."""
    names = "".join(f", {name} = %s" for name in columns)
    return row(
        db,
        f"UPDATE pgqueue.schedule SET next_at = date_trunc('second', clock_timestamp()) - %s::interval{names}"
        " RETURNING revision, next_at::text",
        ago,
        *columns.values(),
    )  # type: ignore[return-value]  # there is one


def later(db: psycopg.Connection, at: str, by: str) -> str:
    return str(value(db, "SELECT (%s::timestamptz + %s::interval)::text", at, by))


def fire(conn: psycopg.Connection, revision: int, at: str, *others: str) -> tuple[str, list[int], str | None]:
    """Fire what is due, and these later occurrences; the next one is in an hour."""
    following = later(conn, "now", "1 h")
    return row(conn, FIRE, revision, at, [at, *others], following)  # type: ignore[return-value]


def tasks(db: psycopg.Connection) -> list[Any]:
    return column(db, "SELECT data FROM pgqueue.tasks ORDER BY id")


@pytest.fixture
def s(db: psycopg.Connection) -> psycopg.Connection:
    """A database with the schedule s."""
    assert value(db, SET % "") == "created"
    return db


# --- firing


def test_an_occurrence_is_fired_once(s: psycopg.Connection, connect: Connect) -> None:
    revision, at = due(s)
    assert fire(s, revision, at) == ("fired", [1], None)
    assert fire(connect(), revision, at) == ("lost", [], None)
    assert tasks(s) == [1]
    assert row(s, "SELECT last_at = %s::timestamptz, last_task, last_state, next_at > now() FROM pgqueue.schedules", at)
    assert row(s, "SELECT last_task, last_state FROM pgqueue.schedules") == (1, "ready")


def test_a_second_clock_does_not_wait_for_the_first(s: psycopg.Connection, connect: Connect) -> None:
    revision, at = due(s)
    first, second = connect(), connect()
    second.execute("SET statement_timeout = '5 s'")
    with first.transaction():
        assert fire(first, revision, at)[0] == "fired"
        assert fire(second, revision, at) == ("busy", [], None)
    assert fire(second, revision, at)[0] == "lost"
    assert tasks(s) == [1]


def test_a_clock_that_is_rolled_back_leaves_the_occurrence_to_the_others(
    s: psycopg.Connection, connect: Connect
) -> None:
    revision, at = due(s)
    first = connect()
    with first.transaction(force_rollback=True):
        assert fire(first, revision, at)[0] == "fired"
    assert tasks(s) == []
    assert fire(s, revision, at)[0] == "fired"
    assert tasks(s) == [1]


def test_a_clock_whose_backend_ends_leaves_nothing(s: psycopg.Connection, connect: Connect) -> None:
    revision, at = due(s)
    first = connect()
    first.execute("BEGIN")
    assert fire(first, revision, at)[0] == "fired"
    s.execute("SELECT pg_terminate_backend(%s::int)", [first.info.backend_pid])
    eventually(lambda: fire(s, revision, at)[0] == "fired")
    assert tasks(s) == [1]
    first.close()


def test_what_was_found_for_an_earlier_revision_does_not_fire(s: psycopg.Connection) -> None:
    revision, at = due(s)
    s.execute("SELECT pgqueue.set_schedule('s', 'q', '2', every => '1 h')")
    assert row(s, "SELECT next_at::text, revision FROM pgqueue.schedule") == (
        at,
        revision + 1,
    )  # its times are the same
    assert fire(s, revision, at)[0] == "lost"
    assert fire(s, revision + 1, at)[0] == "fired"
    assert tasks(s) == [2]


@pytest.mark.parametrize(
    ("missed", "ago", "expected"),
    [
        ("one", "10 s", 1),
        ("one", "2 days", 1),
        ("all", "2 days", 3),
        ("none", "10 s", 1),
        ("none", "2 days", 0),
    ],
)
def test_missed_occurrences(db: psycopg.Connection, missed: str, ago: str, expected: int) -> None:
    db.execute(SET % f", missed => '{missed}'")
    revision, at = due(db, ago)
    outcome, ids, _ = fire(db, revision, at, later(db, at, "1 s"), later(db, at, "2 s"))
    assert (outcome, len(ids)) == ("fired", expected)
    assert len(tasks(db)) == expected
    assert value(db, "SELECT last_at::text FROM pgqueue.schedules") == (later(db, at, "2 s") if expected else None)


def test_a_jobs_task_says_which_schedule_put_it_and_for_when(db: psycopg.Connection) -> None:
    job = {"job": "shop.report", "args": {"n": 1}, "headers": {"a": "b"}}
    db.execute("SELECT pgqueue.set_schedule('s', 'q', %s, every => '1 h')", [Jsonb(job)])
    revision, at = due(db)
    fire(db, revision, at)
    (data,) = tasks(db)
    assert data["headers"].pop("schedule") == "s"
    assert data["headers"].pop("schedule_every") == "3600"
    assert value(db, "SELECT %s::timestamptz = %s::timestamptz", data["headers"].pop("scheduled_at"), at) is True
    assert data == job
    db.execute("SELECT pgqueue.set_schedule('s', 'q', %s, cron => '0 9 * * *', tz => 'Asia/Tokyo')", [Jsonb(job)])
    db.execute("SELECT pgqueue.run_schedule('s')")
    headers = tasks(db)[-1]["headers"]
    assert (headers["schedule_cron"], headers["schedule_tz"]) == ("0 9 * * *", "Asia/Tokyo")
    assert "schedule_every" not in headers


def test_a_schedule_that_was_never_planned_counts_from_when_it_was_set(s: psycopg.Connection) -> None:
    s.execute("UPDATE pgqueue.schedule SET counts_from = clock_timestamp() - interval '10 s'")
    name, revision, next_at, seconds = row(s, "SELECT name, revision, next_at, seconds FROM pgqueue.due_schedules()")  # type: ignore[misc]
    assert (name, next_at, seconds) == ("s", None, 0)
    at = later(s, "now", "-5 s")
    assert row(s, FIRE, revision, None, [at], later(s, "now", "1 h"))[0] == "fired"  # type: ignore[index]
    assert row(s, FIRE, revision, None, [at], later(s, "now", "1 h"))[0] == "lost"  # type: ignore[index]
    assert tasks(s) == [1]


def test_times_that_do_not_fit_are_refused(s: psycopg.Connection) -> None:
    revision, at = due(s, "10 s")
    hour = later(s, "now", "1 h")
    for occurrences, following in (
        ([later(s, at, "-1 s")], hour),
        ([at, at], hour),
        ([later(s, at, "1 s"), at], hour),
        ([at], at),
        (["-infinity"], hour),
        ([at, None], hour),
    ):
        with pytest.raises(psycopg.DatabaseError) as caught:
            s.execute(FIRE, [revision, at, occurrences, following])
        assert caught.value.sqlstate == "PQ002"
    assert row(s, FIRE, revision, at, [at, hour], later(s, hour, "1 h"))[0] == "early"  # type: ignore[index]
    assert tasks(s) == []


def test_without_another_occurrence_it_rests(s: psycopg.Connection) -> None:
    revision, at = due(s)
    assert row(s, FIRE, revision, at, [at], None)[0] == "fired"  # type: ignore[index]
    assert value(s, "SELECT next_at FROM pgqueue.schedules") is None
    assert rows(s, "SELECT name FROM pgqueue.due_schedules()") == []


# --- refusals


def test_a_full_queue_keeps_the_occurrence(s: psycopg.Connection) -> None:
    s.execute("SELECT pgqueue.alter_queue('q', '{\"capacity\": 1}'); SELECT pgqueue.put('q', '0')")
    revision, at = due(s)
    assert fire(s, revision, at) == ("refused", [], 'queue "q" is full')
    assert row(s, "SELECT next_at::text, error FROM pgqueue.schedules") == (at, 'queue "q" is full')
    s.execute("SELECT pgqueue.truncate_queue('q')")
    assert fire(s, revision, at)[0] == "fired"
    assert value(s, "SELECT error FROM pgqueue.schedules") is None


def test_a_limit_that_another_server_keeps_keeps_the_occurrence(s: psycopg.Connection) -> None:
    s.execute("SELECT pgqueue.queue_id('q'), pgqueue.set_limit('q', concurrency => 1, home => 3)")
    revision, at = due(s)
    told = 'server 3 keeps the limit of queue "q", and this is server 0: put its tasks there'
    assert fire(s, revision, at) == ("refused", [], told)
    s.execute("SELECT pgqueue.set_limit('q', concurrency => 1, home => 0)")
    assert fire(s, revision, at)[0] == "fired"


@pytest.mark.slow
def test_a_long_transaction_with_the_key_holds_up_the_schedule_for_a_second(
    db: psycopg.Connection, connect: Connect
) -> None:
    db.execute(SET % """, options => '{"key": "k"}'""")
    revision, at = due(db)
    other = connect()
    with other.transaction(force_rollback=True):
        other.execute("SELECT pgqueue.put('q', '0', key => 'k')")
        outcome, _, problem = fire(db, revision, at)
        assert outcome == "refused"
        assert "lock timeout" in str(problem)
    assert fire(db, revision, at)[0] == "fired"


def test_with_a_key_no_task_is_put_while_the_last_one_is_not_done(db: psycopg.Connection) -> None:
    db.execute(SET % """, options => '{"key": "k", "priority": 7}'""")
    for _ in range(2):
        assert fire(db, *due(db))[:2] == ("fired", [1])
    assert rows(db, "SELECT id, priority FROM pgqueue.tasks") == [(1, 7)]
    db.execute("SELECT pgqueue.ack(t.id, t.token) FROM pgqueue.take('q') t")
    assert fire(db, *due(db))[1] != [1]


def test_a_queue_that_was_deleted_is_created_again(s: psycopg.Connection) -> None:
    s.execute("SELECT pgqueue.delete_queue('q')")
    assert fire(s, *due(s))[0] == "fired"
    assert tasks(s) == [1]


def test_a_queue_that_is_renamed_takes_its_schedules_along(s: psycopg.Connection) -> None:
    s.execute("SELECT pgqueue.rename_queue('q', 'r')")
    assert fire(s, *due(s))[0] == "fired"
    assert column(s, "SELECT queue FROM pgqueue.tasks") == ["r"]


@pytest.mark.parametrize(
    ("call", "sqlstate"),
    [
        ("set_schedule('', 'q', cron => '@daily')", "PQ001"),
        ("set_schedule(NULL, 'q', cron => '@daily')", "PQ001"),
        ("set_schedule('s', '', cron => '@daily')", "PQ001"),
        ("set_schedule('s', 'q')", "PQ002"),
        ("set_schedule('s', 'q', cron => '@daily', every => '1 h')", "PQ002"),
        ("set_schedule('s', 'q', cron => '* * * *')", "PQ002"),
        ("set_schedule('s', 'q', cron => 'x;y')", "PQ002"),
        ("set_schedule('s', 'q', every => '0.5 s')", "PQ002"),
        ("set_schedule('s', 'q', cron => '@daily', tz => 'Mars/Olympus')", "PQ002"),
        ("set_schedule('s', 'q', cron => '@daily', tz => NULL)", "PQ002"),
        ("set_schedule('s', 'q', cron => '@daily', missed => 'two')", "PQ002"),
        ("set_schedule('s', 'q', NULL, cron => '@daily')", "PQ002"),
        ("""set_schedule('s', 'q', cron => '@daily', options => '{"x": 1}')""", "PQ002"),
        ("""set_schedule('s', 'q', cron => '@daily', options => '{"priority": "x"}')""", "PQ002"),
        ("""set_schedule('s', 'q', cron => '@daily', options => '{"ttl": -1}')""", "PQ002"),
        ("""set_schedule('s', 'q', cron => '@daily', options => '[]')""", "PQ002"),
        ("pause_schedule('s')", "PQ080"),
        ("resume_schedule('s')", "PQ080"),
        ("run_schedule('s')", "PQ080"),
        ("delete_schedule(NULL)", "PQ080"),
        ("declare_schedules('', '[]')", "PQ001"),
        ("declare_schedules('shop', '{}')", "PQ002"),
        ("""declare_schedules('shop', '[{"name": "s", "queue": "q", "every": "x"}]')""", "PQ002"),
    ],
)
def test_what_cannot_be_is_refused(db: psycopg.Connection, call: str, sqlstate: str) -> None:
    with pytest.raises(psycopg.DatabaseError) as caught:
        db.execute(f"SELECT pgqueue.{call}")
    assert caught.value.sqlstate == sqlstate
    assert rows(db, "SELECT FROM pgqueue.schedule") == []


# --- changing


def test_changes_are_announced_and_what_is_the_same_is_kept(s: psycopg.Connection, connect: Connect) -> None:
    ear = connect()
    ear.execute('LISTEN "pgqueue:schedules"')
    assert value(s, SET % "") == "kept"
    assert notifications(ear, s) == []
    for call, answer in (
        (SET % ", missed => 'all'", "changed"),
        ("SELECT pgqueue.resume_schedule('s')", False),
        ("SELECT pgqueue.delete_schedule('s')", ""),
    ):
        assert value(s, call) == answer
        assert notifications(ear, s) == ["pgqueue:schedules"]


def test_a_paused_schedule_is_not_fired_and_goes_on_from_its_resumption(s: psycopg.Connection) -> None:
    revision, at = due(s, "1 day")
    assert column(s, "SELECT pgqueue.pause_schedule('s') UNION ALL SELECT pgqueue.pause_schedule('s')") == [True, False]
    assert rows(s, "SELECT name FROM pgqueue.due_schedules()") == []
    assert fire(s, revision, at)[0] == fire(s, revision + 1, at)[0] == fire(s, revision + 2, at)[0] == "lost"
    assert value(s, SET % ", missed => 'all'") == "changed"
    assert value(s, "SELECT paused FROM pgqueue.schedules") is True
    assert value(s, "SELECT pgqueue.resume_schedule('s')") is True
    assert row(s, "SELECT next_at, counts_from > now() - interval '1 h' FROM pgqueue.schedule") == (None, True)


def test_run_now_puts_a_task_and_leaves_the_times(s: psycopg.Connection) -> None:
    _, at = due(s, "-1 h")
    s.execute("SELECT pgqueue.pause_schedule('s')")
    assert value(s, "SELECT pgqueue.run_schedule('s')") == 1
    assert tasks(s) == [1]
    assert row(s, "SELECT next_at::text, last_task FROM pgqueue.schedules") == (at, 1)


def test_the_outcome_of_the_last_task_shows(s: psycopg.Connection) -> None:
    s.execute("SELECT pgqueue.run_schedule('s')")
    s.execute("SELECT pgqueue.finish(t.id, t.token, result => '\"r\"') FROM pgqueue.take('q') t")
    assert row(s, "SELECT last_state, last_result FROM pgqueue.schedules") == ("done", "r")
    s.execute("SELECT pgqueue.run_schedule('s')")
    s.execute("SELECT pgqueue.fail(t.id, t.token, error => 'no') FROM pgqueue.take('q') t")
    assert row(s, "SELECT last_state, last_error FROM pgqueue.schedules") == ("failed", "no")
    s.execute("SELECT pgqueue.run_schedule('s')")
    s.execute("SELECT pgqueue.ack(t.id, t.token) FROM pgqueue.take('q') t")
    assert row(s, "SELECT last_state, last_error FROM pgqueue.schedules") == ("unknown", None)


def test_code_wins_and_what_it_declares_no_more_is_reported_and_kept(db: psycopg.Connection) -> None:
    def declare(*items: dict[str, Any]) -> list[tuple[Any, ...]]:
        return rows(db, "SELECT * FROM pgqueue.declare_schedules('shop', %s)", Jsonb(items))

    a, b = ({"name": name, "queue": "q", "every": 3600} for name in "ab")
    assert declare(b, a) == [("a", "created"), ("b", "created")]
    assert declare(a, b) == [("a", "kept"), ("b", "kept")]
    db.execute("SELECT pgqueue.set_schedule('a', 'q', '5', every => '2 h'), pgqueue.pause_schedule('b')")
    assert declare(a, b) == [("a", "changed"), ("b", "kept")]
    assert column(db, "SELECT paused FROM pgqueue.schedules ORDER BY name") == [False, True]
    assert declare(a) == declare(a) == [("a", "kept"), ("b", "removed")]
    assert rows(db, "SELECT name, declared, removed_at IS NULL FROM pgqueue.schedules ORDER BY name") == [
        ("a", "shop", True),
        ("b", "shop", False),
    ]
    assert rows(db, "SELECT * FROM pgqueue.declare_schedules('other', '[]')") == []
    assert declare(a, b) == [("a", "kept"), ("b", "changed")]
    assert column(db, "SELECT removed_at FROM pgqueue.schedules") == [None, None]


def test_a_role_has_so_many_schedules_and_no_more(s: psycopg.Connection) -> None:
    s.execute("SELECT pgqueue.set_quota('schedules', 1)")
    with pytest.raises(psycopg.DatabaseError) as caught:
        s.execute("SELECT pgqueue.set_schedule('t', 'q', every => '1 h')")
    assert caught.value.sqlstate == "PQ006"
    assert value(s, SET % ", missed => 'all'") == "changed"


# --- rights


def test_it_fires_with_the_rights_of_the_role_that_set_it(
    db: psycopg.Connection, connect: Connect, make: MakeRole
) -> None:
    setter, manager = make(), make()
    db.execute("SELECT pgqueue.revoke_from(%s), pgqueue.revoke_from(%s)", [setter, manager])
    db.execute("SELECT pgqueue.grant('q', %s, '{put}'), pgqueue.grant('q', %s, '{manage}')", [setter, manager])
    user = connect(options=f"-c role={setter}")
    user.execute(SET % "")
    other = connect(options=f"-c role={manager}")
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        other.execute("SELECT pgqueue.put('q', '1')")
    for clock in (user, other):
        assert column(clock, "SELECT name FROM pgqueue.due_schedules()") == ["s"]
        assert fire(clock, *due(db))[0] == "fired"
        db.execute("SELECT pgqueue.delete_schedule('s')")
        user.execute(SET % "")

    db.execute("SELECT pgqueue.revoke('q', %s, '{put}')", [setter])
    outcome, _, problem = fire(other, *due(db))
    assert outcome == "refused"
    assert "may not put into queue" in str(problem)


@pytest.mark.parametrize("verbs", ["{put}", "{take}", "{put,take,look}"])
def test_who_may_not_change_it_does_not_fire_it(
    db: psycopg.Connection, connect: Connect, make: MakeRole, verbs: str
) -> None:
    """Its clock could say that there are no more occurrences, or any number of them."""
    role = make()
    db.execute("SELECT pgqueue.revoke_from(%s)", [role])
    db.execute("SELECT pgqueue.grant('q', %s, %s::text[])", [role, verbs])
    db.execute(SET % "")
    revision, at = due(db)
    worker = connect(options=f"-c role={role}")
    before = rows(db, "SELECT * FROM pgqueue.schedule")
    assert rows(worker, "SELECT name FROM pgqueue.due_schedules()") == []
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        fire(worker, revision, at)
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        worker.execute("SELECT pgqueue.fire_schedule('s', %s, %s, '{}', NULL, 'forged')", [revision, at])
    for verb in ("pause", "resume", "run", "delete"):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            worker.execute(f"SELECT pgqueue.{verb}_schedule('s')")
    assert rows(db, "SELECT * FROM pgqueue.schedule") == before


NAMES = [
    "a",
    "a.",
    "a.b",
    "a_b",
    "a%b",
    "a\\b",
    "aXb",
    "a}",
    "a~",
    "a\u00fc",
    "a\U0010ffffz",
    "b",
    "B",
    "",
    "\u00fcber",
    "[x]",
    "^",
]


@pytest.mark.parametrize(
    "pattern", ["a*", "a.*", "a_*", "a%*", "a\\*", "a}*", "a~*", "a\u00fc*", "*b", "*", "\u00fc*", "[*", "^*", "a"]
)
def test_a_clock_finds_the_schedules_of_the_queues_that_its_role_manages(
    db: psycopg.Connection, connect: Connect, make: MakeRole, pattern: str
) -> None:
    """A pattern has one star in a place where the index of names may begin, or not."""
    role, names = make(), [f"{name} q" for name in NAMES]
    db.execute("SELECT pgqueue.revoke_from(%s)", [role])
    db.execute("SELECT pgqueue.grant_to(%s, '{manage}', %s)", [role, pattern])
    db.execute("SELECT pgqueue.set_schedule(q, q, every => '1 h') FROM unnest(%s::text[]) q", [names])
    db.execute("SELECT pgqueue.restrict_queue('a.b q')")
    found = column(connect(options=f"-c role={role}"), "SELECT name FROM pgqueue.due_schedules()")
    managed = re.compile(re.escape(pattern).replace(r"\*", ".*"), re.DOTALL)
    assert sorted(found) == sorted(name for name in names if managed.fullmatch(name) and name != "a.b q")


@pytest.mark.slow
def test_a_clock_reads_no_schedules_that_its_role_may_not_fire(
    db: psycopg.Connection, connect: Connect, make: MakeRole
) -> None:
    clock, other = make(), make()
    for role in (clock, other):
        db.execute("SELECT pgqueue.revoke_from(%s)", [role])
    db.execute("SELECT pgqueue.grant_to(%s, pattern => 'mine.*'), pgqueue.grant('q', %s)", [clock, clock])
    db.execute("SELECT pgqueue.grant_to(%s, pattern => 'theirs.*')", [other])
    db.execute("SELECT pgqueue.set_schedule(q, q, every => '1 h') FROM unnest('{mine.a,q}'::text[]) q")
    theirs = connect(options=f"-c role={other}")
    theirs.execute(
        "SELECT pgqueue.set_schedule('t' || g, 'theirs.q' || g, every => '1 h') FROM generate_series(1, 3000) g"
    )
    db.execute("ANALYZE pgqueue.schedule")
    with connect(options=f"-c role={clock}", autocommit=False) as conn:
        assert sorted(column(conn, "SELECT name FROM pgqueue.due_schedules()")) == ["mine.a", "q"]
        conn.execute("RESET ROLE")
        assert int(value(conn, READ)) < 20


def test_a_role_neither_sees_nor_fires_the_schedules_of_other_queues(
    db: psycopg.Connection, connect: Connect, make: MakeRole
) -> None:
    role = make()
    db.execute("SELECT pgqueue.revoke_from(%s)", [role])
    db.execute("SELECT pgqueue.grant('other', %s)", [role])
    db.execute(SET % "")
    revision, at = due(db)
    user = connect(options=f"-c role={role}")
    assert rows(user, "SELECT name FROM pgqueue.schedules") == rows(user, "SELECT * FROM pgqueue.due_schedules()") == []
    for call in (
        "set_schedule('s', 'other', every => '1 h')",
        "pause_schedule('s')",
        "set_schedule('t', 'q', every => '1 h')",
    ):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            user.execute(f"SELECT pgqueue.{call}")
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        fire(user, revision, at)
