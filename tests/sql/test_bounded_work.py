"""What one role has made in thousands costs the periodic work no more rows in each round: counted, not timed."""

from __future__ import annotations

from typing import LiteralString

import psycopg
import pytest
from altered import replaced
from eventually import eventually
from statements import rows, value

FEW, MANY = 300, 1500

#: What a role may make in any number, or up to a quota: the statements that make those from %(first)s to %(last)s.
_EACH = "FROM generate_series(%(first)s::int, %(last)s::int) g"
_PUTS = f"(SELECT jsonb_agg(jsonb_build_object('k', g)) {_EACH})"
MADE: dict[str, tuple[LiteralString, ...]] = {
    "queues": (f"SELECT pgqueue.create_queue('q' || g, ttl => '1 h') {_EACH}",),
    "exchanges": (f"SELECT pgqueue.declare_exchange('e' || g) {_EACH}",),
    "bindings": (f"SELECT pgqueue.bind('one', 'news', 'k' || g) {_EACH}",),
    "batches": (f"SELECT pgqueue.create_batch('b' || g) {_EACH}",),
    "closed batches": (
        f"SELECT pgqueue.put_flow('one', '1', batch => pgqueue.create_batch('b' || g)) {_EACH}",
        "SELECT pgqueue.close_batch(id) FROM pgqueue.batch WHERE closed_at IS NULL",
    ),
    "members": (
        "SELECT pgqueue.create_batch('b') WHERE %(first)s = 1",
        f"SELECT pgqueue.put_flow('one', '1', batch => (SELECT id FROM pgqueue.batch)) {_EACH}",
    ),
    "nodes": (f"SELECT pgqueue.create_node('/n' || g) {_EACH}",),
    "schedules": (f"SELECT pgqueue.set_schedule('s' || g, 'one', '1', every => '1 h') {_EACH}",),
    "sessions": (
        "SELECT pgqueue.open_session() WHERE %(first)s = 1",
        f"SELECT pgqueue.open_session(parent => pgqueue.own_session()) {_EACH}",
    ),
    "payloads": (f"SELECT pgqueue.post('c', repeat('x', 9000)) {_EACH}",),
    "limits": (f"SELECT pgqueue.set_limit('one', job => 'j' || g, concurrency => 1) {_EACH}",),
    "values of a limit": (
        "SELECT pgqueue.set_limit('one', concurrency => 1, argument => 'k')",
        f"SELECT pgqueue.put_many('one', {_PUTS})",
    ),
    "statuses": (f"SELECT pgqueue.set_status('s' || g, '1', ttl => '1 h') {_EACH}",),
    "lanes": (f"SELECT pgqueue.put('one', '1', lane => 'l' || g) {_EACH}",),
    "delayed tasks": (f"SELECT pgqueue.put('one', '1', delay => '1 h') {_EACH}",),
    "ready tasks": (f"SELECT pgqueue.put_many('one', {_PUTS})",),
    "waiting tasks": (
        "SELECT pgqueue.put('one', '1') WHERE %(first)s = 1",
        f"SELECT pgqueue.put_flow('one', '1', after => ARRAY (SELECT min(id) FROM pgqueue.task)) {_EACH}",
    ),
    "results": (
        f"SELECT pgqueue.put_many('one', {_PUTS})",
        "SELECT pgqueue.finish(id, token, result => '1') FROM pgqueue.take_many('{one}', 20000)",
    ),
    "kept tasks": (
        "SELECT pgqueue.alter_queue('one', '{\"keep_done\": 3600}')",
        f"SELECT pgqueue.put_many('one', {_PUTS})",
        "SELECT pgqueue.ack(id, token) FROM pgqueue.take_many('{one}', 20000)",
    ),
    "takes": (f"SELECT pgqueue.put_many('one', {_PUTS})", "SELECT pgqueue.take_many('{one}', 20000)"),
    "claims": (
        f"SELECT pgqueue.put_many('one', {_PUTS})",
        f"SELECT pgqueue.claim_messages('one', 1) {_EACH}",
    ),
    "buried tasks": (
        f"SELECT pgqueue.put_many('one', {_PUTS})",
        "SELECT pgqueue.fail(id, token, error => 'e') FROM pgqueue.take_many('{one}', 20000)",
    ),
}

#: What every client does now and then, whatever its queues are.
WORK = (
    "SELECT pgqueue.promote_all()",
    "SELECT pgqueue.sweep()",
    "SELECT pgqueue.clean_up()",
    "SELECT count(*) FROM pgqueue.due_schedules()",
)
_TICK, _SWEEP, _CLEANING, _CLOCK = WORK

#: How many rows of a table a call may read for each thing that is there. Quotas bound these things, and the cleaning
#: comes once in a minute. It goes through takes and attempts by parts of 2,000 pages.
PER_THING = {
    (_TICK, "queue"): 2,
    (_SWEEP, "session"): 1,  # 2,000 cost it 0.2 ms
    (_CLEANING, "session"): 2,
    (_CLEANING, "audit_entry"): 1,  # up to 10,000
    (_CLEANING, "queue"): 8,
    (_CLEANING, "exchange"): 2,
    (_CLEANING, "binding"): 2,
    (_CLEANING, "batch"): 2,
    (_CLEANING, "node"): 2,
    (_CLEANING, "schedule"): 2,
    (_CLEANING, "payload"): 2,
    (_CLEANING, "take"): 1,
    (_CLEANING, "attempt"): 1,
    (_CLOCK, "schedule"): 1,
}
SLACK = 20  # rows of other tables, of which a plan may read a page more

PREPARED = "SELECT pgqueue.create_queue('one'), pgqueue.declare_exchange('news', 'topic')"
READ = """
    SELECT relname, (coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0))::int FROM pg_stat_xact_user_tables
     WHERE schemaname = 'pgqueue'"""


def make(db: psycopg.Connection, kind: str, first: int, last: int) -> None:
    for statement in MADE[kind]:
        db.execute(statement, {"first": first, "last": last})
    for _ in range(12):  # ticks have rounds of work with what is new
        for call in WORK:
            db.execute(call)
    eventually(lambda: rows(db, WORK[0]) and not rows(db, "SELECT FROM pgqueue.task_limit WHERE changing LIMIT 1"))
    db.execute("VACUUM ANALYZE")


def read(db: psycopg.Connection) -> dict[str, dict[str, int]]:
    """How many rows of each table each call reads."""
    found = {}
    for call in WORK:
        with db.transaction(force_rollback=True):
            db.execute(call)  # samples and the like, which come once in some seconds
            before = dict(rows(db, READ))
            db.execute(call)
            after = dict(rows(db, READ))
        found[call] = {table: n for table in after if (n := after[table] - before.get(table, 0))}
    return found


def found(few: dict[str, dict[str, int]], many: dict[str, dict[str, int]]) -> dict[str, tuple[int, int]]:
    """The calls and tables of which more rows are read than PER_THING allows."""
    return {
        f"{call} {table}": (few[call].get(table, 0), n)
        for call, read in many.items()
        for table, n in read.items()
        if n > few[call].get(table, 0) + SLACK + PER_THING.get((call, table), 0) * (MANY - FEW)
    }


@pytest.mark.slow
@pytest.mark.parametrize("kind", MADE)
def test_a_round_reads_no_more_rows_where_a_role_has_made_many(db: psycopg.Connection, kind: str) -> None:
    rows(db, PREPARED)
    make(db, kind, 1, FEW)
    few = read(db)
    make(db, kind, FEW + 1, MANY)
    assert found(few, read(db)) == {}


def test_every_quota_has_its_things_here(db: psycopg.Connection) -> None:
    assert {what for (what,) in rows(db, "SELECT what FROM pgqueue.quotas")} <= set(MADE)


#: A round that goes through all things of a kind; the table, and what reads it.
PLANTED = {
    "statuses": ("status", "promote_all", "SELECT count(k.value) FROM pgqueue.status k"),
    "members": ("member", "promote_all", "SELECT max(k.state::text) FROM pgqueue.member k"),
    "limits": ("task_limit", "promote_all", "SELECT count(k.concurrency) FROM pgqueue.task_limit k"),
    "schedules": ("schedule", "sweep", "SELECT count(k.data) FROM pgqueue.schedule k"),
    "bindings": ("binding", "sweep", "SELECT max(k.key) FROM pgqueue.binding k"),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", PLANTED)
def test_a_round_that_goes_through_all_is_found(db: psycopg.Connection, kind: str) -> None:
    table, function, query = PLANTED[kind]
    rows(db, PREPARED)
    with replaced(db, function, "BEGIN", f"BEGIN PERFORM ({query});"):
        make(db, kind, 1, FEW)
        few = read(db)
        make(db, kind, FEW + 1, MANY)
        assert set(found(few, read(db))) == {f"SELECT pgqueue.{function}() {table}"}


WRITTEN = """
    SELECT (n_tup_ins + n_tup_upd + n_tup_del)::int FROM pg_stat_xact_user_tables
     WHERE schemaname = 'pgqueue' AND relname = 'dependency'"""
STATES = """
    SELECT d.state FROM pgqueue.dependency d JOIN pgqueue.task t ON t.id = d.task_id
      JOIN pgqueue.queue q ON q.id = t.queue_id WHERE q.name = %s GROUP BY 1 ORDER BY 1"""


@pytest.mark.slow
def test_a_tick_links_and_forgets_many_dependencies_in_parts(db: psycopg.Connection) -> None:
    """100 tasks, each after the same 100. The tick looks at the task of another queue, too."""

    def tick() -> int:
        with db.transaction():
            before = value(db, WRITTEN)
            rows(db, _TICK)
            return int(value(db, WRITTEN)) - int(before)

    made = "(SELECT jsonb_agg(g) FROM generate_series(1, 100) g)"
    after = "ARRAY (SELECT id FROM pgqueue.task)"
    for put in (f"put_many('one', {made})", f"put_flow_many('one', {made}, after => {after})", "put('two', '1')"):
        rows(db, f"SELECT pgqueue.{put}")
    rows(db, "SELECT pgqueue.put_flow('two', '2', after => '{201}')")
    assert 0 < tick() <= 2000
    assert rows(db, STATES, "one") == [("N",), ("O",)]
    assert rows(db, STATES, "two") == [("O",)]
    eventually(lambda: tick() == 0)
    assert rows(db, STATES, "one") == [("O",)]
    rows(db, "SELECT pgqueue.truncate_queue('one')")
    assert 0 < tick() <= 2000
    eventually(lambda: rows(db, _TICK) and value(db, "SELECT count(*) FROM pgqueue.dependant") == 1)
    assert value(db, "SELECT count(*) FROM pgqueue.dependency") == 1


@pytest.mark.slow
def test_a_cleaning_removes_the_latches_of_a_hundred_deleted_queues(db: psycopg.Connection) -> None:
    """A role may make and delete queues with lanes in any number, and no quota counts those that are gone."""
    names = [f"q{n}" for n in range(110)]
    for call in ("create_queue", "allow_lanes", "delete_queue"):
        db.execute(f"SELECT pgqueue.{call}(name) FROM unnest(%s::text[]) name".encode(), [names])
    left = [(db.execute("SELECT pgqueue.clean_up()"), value(db, "SELECT count(*) FROM pgqueue.latch"))[1] for _ in "ab"]
    assert left == [10 * 256, 0]
