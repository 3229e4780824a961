"""How much the admin reads of a queue with many tasks. Rows are counted, for time would be another each time."""

import re

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from pgqueue.contrib.django.admin.paging import MOST


@pytest.fixture
def crowd(db):
    """20,000 tasks in one queue."""
    db.execute("SELECT pgqueue.put('mail', '{}')")
    db.execute(
        "INSERT INTO pgqueue.task (queue_id, data) SELECT queue_id, data FROM pgqueue.task, generate_series(1, 14999)"
    )
    for state, due in (("D", "now() + interval '1 d'"), ("B", "NULL")):
        db.execute(
            "INSERT INTO pgqueue.task (queue_id, data, state, run_at)"
            f" SELECT queue_id, data, '{state}', {due} FROM pgqueue.task WHERE state = 'R' ORDER BY id LIMIT 2500"
        )
    db.execute("ANALYZE pgqueue.task")
    db.execute("SELECT pgqueue.promote_all()")  # which counts what SQL inserted


PAGES = (
    "queue/",
    "queue/mail/change/",
    "task/",
    "task/?p=9",
    "take/",
    "session/",
    "result/",
    "schedule/",
    "health/",
    "task/?q=700",
    "task/?queue=mail&q=nix",
)


@pytest.mark.slow
def test_a_page_reads_some_rows_and_not_all(browser, crowd, db):
    read = "SELECT seq_tup_read + idx_tup_fetch FROM pg_stat_xact_user_tables WHERE relid = 'pgqueue.task'::regclass"
    for page in (*PAGES, *(f"task/?queue=mail&state={state}&p=2" for state in ("ready", "delayed", "buried"))):
        with transaction.atomic(), connection.cursor() as cursor, CaptureQueriesContext(connection) as queries:
            before = cursor.execute(read).fetchone()[0]
            browser.page(page)
            rows = cursor.execute(read).fetchone()[0] - before
        assert rows < 5 * MOST, page  # of 20,000
        assert len(queries) < 12, page
        assert all("LIMIT" in query["sql"] for query in queries if "count(*)" in query["sql"].lower())


@pytest.mark.slow
def test_a_list_ends_somewhere(browser, crowd):
    assert f"{MOST} tasks" in browser.page("task/?queue=mail")
    assert "ready (15,000)" in browser.page("task/?queue=mail")
    assert len(browser.ids("task/?queue=mail&p=10")) == 50
    assert browser.http.get("/admin/pgqueue/task/?queue=mail&p=11").headers["Location"].endswith("?e=1")


@pytest.mark.slow
def test_an_address_asks_for_nothing_that_no_index_has(browser, crowd):
    assert browser.http.get("/admin/pgqueue/task/?error__contains=x").status_code == 400
    assert browser.ids("task/?o=4") == browser.ids("task/?o=-4") == browser.ids("task/")
    assert browser.http.get("/admin/pgqueue/task/?queue=mail&state=lost").headers["Location"].endswith("?e=1")
    assert "o=" not in "".join(re.findall(r'<a href="(\?[^"]*)"', browser.page("task/")))
