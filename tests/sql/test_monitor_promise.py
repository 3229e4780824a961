"""What docs/guides/monitoring.md promises to keep is there, as it says, and in the documentation."""

from __future__ import annotations

import re
from collections.abc import Iterator

import psycopg
import pytest
from checkout import CHECKOUT
from statements import column, rows

PAGE = (CHECKOUT / "docs" / "guides" / "monitoring.md").read_text("utf-8")

#: A column may be added at the end of a view, and then here. Nothing else may change: programs read these by name or by
#: place.
PROMISED = {
    "queues": "name type priority delay ttr ttl maxlen max_takes capacity max_size keep_done dead_letter "
    "dead_letter_key exclusive temporary auto_delete listed lanes draining paused_until granted_to session metadata "
    "created_at id role expires",
    "job_stats": "queue job done failed retried timeouts cancelled taken wait_p50 wait_p95 run_p50 run_p95 last_at",
    "workers": "session number name host pid started_at age state queues jobs concurrency limits version role",
    "stats": "queue total ready delayed taken buried blocked done kept oldest_ready_age calls",
    "rates": "queue seconds puts takes acks releases buries done growth drained_in",
    "queue_history": "queue period at puts takes acks done releases buries timeouts ready most_ready taken delayed "
    "buried blocked oldest_ready_age",
    "tasks": "id queue state priority attempts created_at run_at ttr error data taken_at deadline session holder "
    "expires_at routing_key deaths lane key done_at sender releases timeouts buries kicks queue_id stored "
    "ready_since buried_at",
    "takes": "id queue holder host pid session backend_pid taken_at age deadline time_left lane claim",
    "sessions": "id label backend_pid started_at grace missing_since taken identity host pid age state longest_take "
    "role parent",
    "listeners": "backend_pid label host pid session role client_addr connected_at age state state_since wait_event",
    "locks": "name mode holder backend_pid session locked_at age fence waiters",
    "tables": "name rows dead_rows vacuum_at table_bytes index_bytes toast_bytes total_bytes last_vacuum last_analyze "
    "autovacuum vacuuming xid_age",
    "snapshots": "kind name pid role database client_addr state xid_age since age query_start query holds_back",
    "health": "name status value unit detail",
}
STATISTICS = "job-statistics.md"
ELSEWHERE = {"job_stats": STATISTICS, "workers": STATISTICS, "queues": "queues.md", "locks": "locks.md"}


@pytest.fixture(scope="module")
def conn(shared: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(shared, autocommit=True) as connection:
        yield connection


@pytest.mark.parametrize("view", PROMISED)
def test_a_view_has_the_columns_that_were_promised(conn: psycopg.Connection, view: str) -> None:
    promised = PROMISED[view].split()
    query = "SELECT attname FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0 ORDER BY attnum"
    assert column(conn, query, f"pgqueue.{view}") == promised
    if view not in ELSEWHERE:
        assert [name for name in promised if f"`{name}`" not in PAGE] == []


def test_the_checks_are_those_of_the_page(conn: psycopg.Connection) -> None:
    section = PAGE.partition("\n## Health\n")[2].partition("\n## ")[0]
    documented = [line.split("`")[1] for line in section.splitlines() if line.startswith("| `")]
    assert sorted(column(conn, "SELECT name FROM pgqueue.health")) == sorted(documented)


def test_the_reasons_are_those_of_the_page(conn: psycopg.Connection) -> None:
    """Each word that a reason may be, as the functions' text has it."""
    bodies = "SELECT prosrc FROM pg_proc WHERE pronamespace = 'pgqueue'::regnamespace AND proname = 'why'"
    reasons = {word for body in column(conn, bodies) for word in re.findall(r"RETURN QUERY SELECT '([a-z ]+)'", body)}
    assert len(reasons) > 10
    assert {word for word in reasons if f"`{word}`" not in PAGE} == set()


def test_everything_says_what_it_is_for(conn: psycopg.Connection) -> None:
    views = "SELECT relname FROM pg_class WHERE relnamespace = 'pgqueue'::regnamespace AND relkind = 'v'"
    query = f"{views} AND relname !~ '^_' AND obj_description(oid, 'pg_class') IS NULL"
    assert rows(conn, query) == []
