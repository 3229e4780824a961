"""The hot statements go by the index that was made for them, whatever the planner was told about the tables.

`take` is nearly empty in its statistics and full of rows and dead rows in truth; a cached plan outlives what it was
made for. So every plan, also of the statements inside the functions, is looked at in four situations: statistics that
are right, that are from when all was empty, that are from when there were only dead rows, and that are from before a
large queue was emptied. The planner takes a table of which it knows nothing for one of ten pages, and one in which
ANALYZE found pages without a row for one row: there it reads an index to its end as gladly as it looks a row up. And
the cost of a claim, in pages touched, is the same whatever lies behind it, also by a plan that was cached before it
came.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import psycopg
import pytest
from planner import pages, plans, without_autovacuum
from servers import Server
from statements import value

DEAD_ROWS = "taken of dead rows"
SITUATIONS = ["fresh", "taken while empty", DEAD_ROWS, "taken while full"]

# The indexes that each is to use, and no other; what may be scanned is neither `task` nor `take`.
INTENDED = {
    "SELECT * FROM pgqueue.take('q')": "task_ready take_pkey task_delayed take_deadline",
    "SELECT * FROM pgqueue.take_many(ARRAY ['q'], 100)": "task_ready take_pkey task_pkey task_delayed take_deadline",
    "SELECT * FROM pgqueue.take_many(ARRAY ['q', 'r'], 9)": "task_ready take_pkey task_pkey task_delayed take_deadline",
    "SELECT * FROM pgqueue.pop('q', 10)": "task_ready take_pkey task_pkey task_delayed take_deadline",
    "SELECT * FROM pgqueue.ack(1, 1)": "take_pkey task_pkey",
    "SELECT * FROM pgqueue.ack_many(ARRAY [1, 2, 3], ARRAY [1, 1, 1])": "take_pkey task_pkey",
    "SELECT * FROM pgqueue.ack_many(ARRAY [1, 2, 3], ARRAY [1, 2, 1])": "take_pkey task_pkey",
    "SELECT * FROM pgqueue.release(1, 1, delay => '1 s')": "take_pkey task_pkey",
    "SELECT * FROM pgqueue.release_many(ARRAY [1, 2, 3], ARRAY [1, 1, 1])": "take_pkey task_pkey",
    "SELECT * FROM pgqueue.touch(1, 1)": "take_pkey task_pkey",
    "SELECT * FROM pgqueue.bury(5)": "take_pkey task_pkey",
    "SELECT * FROM pgqueue.delete(6)": "take_pkey task_pkey",
    "SELECT pgqueue.promote_all()": "task_ready take_pkey task_delayed take_deadline task_expiring",
    "SELECT pgqueue._promote(1)": "task_pkey take_pkey task_delayed take_deadline task_expiring",
    "SELECT * FROM pgqueue.next_due(ARRAY ['q'])": "task_ready take_pkey task_delayed take_deadline",
    "SELECT pgqueue.kick('q', 5)": "task_buried task_pkey",
    "SELECT * FROM pgqueue.tasks WHERE id = 7": "take_pkey task_pkey",
    "SELECT * FROM pgqueue.find_tasks('q', 'ready')": "task_ready take_pkey task_delayed",
    "SELECT * FROM pgqueue.find_tasks('q', 'delayed')": "task_delayed take_pkey",
    "SELECT * FROM pgqueue.find_tasks('q', 'buried')": "task_buried take_pkey",
    "SELECT * FROM pgqueue.stats": "task_ready take_pkey task_delayed take_deadline task_expiring",
}

FORBIDDEN = re.compile(r"Seq Scan on (task|take)\b|Bitmap Heap Scan on (task|take)\b")
WHOLE_INDEX = re.compile(r"Index (Only )?Scan( Backward)? using task_(pkey|ready|delayed|buried) .*\n(?!\s*Index Cond)")
HASHED = re.compile(r"hashed SubPlan (\d+)")
#: For people, from a view that joins the takes: with statistics of dead rows these read an index to its end, or by
#: bitmap. A view of look-ups would cost those who count all tasks.
OF_A_VIEW = ("SELECT * FROM pgqueue.find_tasks('q', 'ready')", "SELECT * FROM pgqueue.tasks WHERE id = 7")

TASKS = """INSERT INTO pgqueue.task (queue_id, data, state, run_at)
           SELECT %s, '{}', %s::"char", CASE WHEN %s::text = 'D' THEN now() + interval '1 h' + i * interval '1 ms' END
             FROM generate_series(1, %s) i"""
TAKES = """INSERT INTO pgqueue.take (task_id, token, taken_at, deadline, queue_id, session_id)
           SELECT id, 1, now(), CASE WHEN id %% 2 = 0 THEN 'infinity' ELSE now() + interval '1 h' END, queue_id, 1
             FROM pgqueue.task WHERE state = 'R' ORDER BY id LIMIT %s"""


def hashes_rows(plan: str) -> bool:
    """Whether it puts all rows of a subquery into a hash table; other than the elements of an argument."""
    return any(
        re.search(rf"^\s*SubPlan {number}\n\s*->  Function Scan on u", plan, re.MULTILINE) is None
        for number in HASHED.findall(plan)
    )


def fill(conn: psycopg.Connection, n: int, taken: int) -> None:
    """n ready tasks, some of them taken, and as many delayed and buried ones."""
    queue = value(conn, "SELECT pgqueue.queue_id('q')")
    for state in "RDB":
        conn.execute(TASKS, [queue, state, state, n])
    conn.execute(TAKES, [taken])
    conn.execute(
        "SELECT pgqueue._fold_deltas(at_once => true)"
    )  # raw SQL is counted by the next fold: not by what is measured


@pytest.fixture(scope="module")
def planned(pg_server: Server, pg_template: str) -> Iterator[str]:
    """A database whose statistics are ours alone."""
    name = pg_server.create(pg_template)
    with psycopg.connect(pg_server.dsn(name), autocommit=True) as conn:
        without_autovacuum(conn, "task", "take", "queue", "session")
        conn.execute("SELECT pgqueue.queue_id('q'), pgqueue.queue_id('r')")
    yield pg_server.dsn(name)
    pg_server.drop(name)


@pytest.fixture(scope="module", params=SITUATIONS)
def situation(request: pytest.FixtureRequest, planned: str) -> str:
    """The database with statistics of the kind that the parameter says; returns its DSN."""
    analyze = "ANALYZE pgqueue.task, pgqueue.take, pgqueue.queue"
    backlog = request.config.getoption("backlog") // 3
    with psycopg.connect(planned, autocommit=True) as conn:
        conn.execute("TRUNCATE pgqueue.task, pgqueue.take RESTART IDENTITY")
        if request.param == DEAD_ROWS:
            fill(conn, 20, 10)
            conn.execute("DELETE FROM pgqueue.take; DELETE FROM pgqueue.task")
        if request.param in ("taken while empty", DEAD_ROWS):
            conn.execute(analyze)
        fill(conn, backlog, backlog // 10)
        if request.param in ("fresh", "taken while full"):
            conn.execute(analyze)
        if request.param == "taken while full":
            conn.execute("DELETE FROM pgqueue.take WHERE task_id > 20")
            conn.execute("DELETE FROM pgqueue.task WHERE id > 40")
        conn.execute("SELECT pgqueue._fold_deltas()")  # counts what was inserted by hand, once
        conn.execute("UPDATE pgqueue.fold SET folded_at = 'infinity'")
    return planned


@pytest.mark.parametrize("query", INTENDED, ids=lambda query: re.findall(r"pgqueue\.(\w+)", query)[0])
def test_indexes_are_used(situation: str, query: str, request: pytest.FixtureRequest) -> None:
    with psycopg.connect(situation, autocommit=True) as conn:
        conn.execute("SELECT setval('pgqueue.history_turn', 0, false)")  # the tick writes a minute
    each = plans(situation, query)
    text = "\n".join(each)
    if query in OF_A_VIEW and request.node.callspec.params["situation"] == DEAD_ROWS:
        return
    assert FORBIDDEN.search(text) is None, text
    assert WHOLE_INDEX.search(text) is None, text
    assert not any(map(hashes_rows, each)), text
    used = re.findall(r"(?:using|Scan on) (ta\w+?_(?:pkey|ready|delayed|buried|expiring|deadline))\b", text)
    assert set(used) == set(INTENDED[query].split())


# --- pages


@pytest.fixture
def costs(db: psycopg.Connection, dsn: str) -> Iterator[Callable[[str], int]]:
    """Pages of a statement by a connection that has planned it while its queue was small."""
    without_autovacuum(db, "task", "take")
    fill(db, 1000, 0)
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute("SELECT pgqueue.open_session()")

        def cost(query: str) -> int:
            return min(pages(conn, query) for _ in range(5))

        yield cost


CLAIM_ONE = "SELECT * FROM pgqueue.take('q')"
CLAIM_100 = "SELECT * FROM pgqueue.take_many(ARRAY ['q'], 100)"
ACK_100 = """SELECT count(*) FROM (SELECT array_agg(id) ids, array_agg(token) tokens
                                     FROM pgqueue.take_many(ARRAY ['q'], 100)) t, pgqueue.ack_many(t.ids, t.tokens)"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("query", "at_most"),
    [
        (CLAIM_ONE, 80),
        (CLAIM_100, 1500),
        (ACK_100, 2500),
        ("SELECT * FROM pgqueue.pop('q')", 80),
        ("SELECT pgqueue.promote_all()", 40),
        ("SELECT * FROM pgqueue.next_due(ARRAY ['q'])", 60),
    ],
    ids=["claim of one", "claim of 100", "claim and ack of 100", "pop", "promotion", "next due"],
)
def test_the_cost_does_not_depend_on_what_lies_behind(
    db: psycopg.Connection, costs: Callable[[str], int], size: dict[str, int], query: str, at_most: int
) -> None:
    """A hundred times the tasks, in every state, and the same few pages."""
    before = costs(query)
    fill(db, size["backlog"] // 3, 0)
    after = costs(query)
    print(f"{query}: {before} pages with 1,000 tasks, {after} with {size['backlog']:,}")
    assert after <= at_most
    assert after <= before * 1.5 + 20


@pytest.mark.slow
def test_a_waiter_does_not_pay_for_other_queues(
    db: psycopg.Connection, costs: Callable[[str], int], size: dict[str, int]
) -> None:
    """Its last look is at its own queue, however much is ready in another."""
    queries = ["SELECT * FROM pgqueue.next_due(ARRAY ['empty'])", "SELECT * FROM pgqueue.take('empty')"]
    value(db, "SELECT pgqueue.queue_id('empty')")
    for query in queries:
        costs(query)
    fill(db, size["backlog"] // 3, 0)
    assert [costs(query) <= 60 for query in queries] == [True, True]


def test_nothing_is_compiled(db: psycopg.Connection) -> None:
    """A plan that was steered looks dear, and JIT would compile it at every call, for a tenth of a second."""
    steered = "SELECT proname FROM pg_proc WHERE pronamespace = 'pgqueue'::regnamespace AND proconfig::text ~ 'enable_'"
    assert value(db, f"SELECT count(*) FROM ({steered}) steered") > 10
    assert db.execute(f"{steered} AND NOT proconfig::text ~ 'jit=off'").fetchall() == []


@pytest.mark.slow
def test_what_is_counted_anew_is_joined_once(db: psycopg.Connection, dsn: str) -> None:
    """Row by row, the stats of 10,000 queues took 6 seconds before the first fold, and after a crash."""
    db.execute("SELECT pgqueue.create_queue('q' || i) FROM generate_series(1, 200) i")
    db.execute("TRUNCATE pgqueue.fold")
    for query in ("SELECT * FROM pgqueue._queue_stats(NULL)", "SELECT * FROM pgqueue._health_stats()"):
        (joined,) = (plan for plan in plans(dsn, query) if "FROM pgqueue._count_anew(queues) a JOIN" in plan)
        assert "Hash Join" in joined
        assert "Nested Loop" not in joined
