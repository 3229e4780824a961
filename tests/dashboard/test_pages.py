"""Each page over HTTP: what it shows of a database with something of everything, and of an empty one."""

from __future__ import annotations

import json
import re
import socket
from datetime import UTC, datetime
from html import unescape
from typing import Any
from urllib.parse import urlencode

import pytest
from starlette.authentication import SimpleUser, UnauthenticatedUser
from starlette.requests import Request
from statements import rows, value

from pgqueue import Put
from pgqueue._calls.queue import MEANINGS
from pgqueue.dashboard.pages import MENU, tasks, workers
from pgqueue.dashboard.settings import checked
from pgqueue.monitors import reasons, words

pytestmark = pytest.mark.once

MENU_PATHS = [page.path for page in MENU]


@pytest.mark.parametrize("path", MENU_PATHS)
def test_a_page_of_an_empty_database_says_so(visitor, path):
    page = visitor.page(path)
    assert "<h1>" in page
    assert 'aria-current="page"' in page


def test_the_overview_names_what_is_wrong_with_the_remedy(visitor, client):
    client.queue("mail").put("x")
    client.queue("mail").pause(600)
    client.queue("other").put("x")
    client.queue("other").take(5).bury(error="the disk is full")
    page = visitor.page()
    assert words.CHECKS["paused"].said in page
    assert words.CHECKS["buried"].said in page
    assert 'href="failures"' in page
    assert "act?queue=mail&amp;do=resume" in page


@pytest.mark.slow
def test_the_overview_searches_queues_and_shows_them_page_by_page(visitor, db):
    db.execute("SELECT pgqueue.create_queue('q' || lpad(n::text, 3, '0')) FROM generate_series(1, 120) n")
    first = visitor.page()
    assert first.count('href="queue?name=') == 50
    assert visitor.page(after="q050").count('href="queue?name=') == 50
    assert 'rel="next"' not in visitor.page(after="q100")
    assert visitor.page(q="11").count('href="queue?name=') == 11  # q011, q110 to q119
    assert "No queue has" in visitor.page(q="nothing has this")


def test_bytes_are_shown_as_python_writes_them(visitor, client):
    id = client.queue("mail").put({"body": b"\x80K", "title": "a\0b"}).id
    page = unescape(visitor.page("task", id=id))
    assert r"""b'\\x80K'""" in page
    assert r'"a\u0000b"' in page
    assert r"""{"body":"b'\\x80K'""" in unescape(visitor.page("tasks", queue="mail", state="ready"))


def test_a_queue_has_its_numbers_options_and_reasons(visitor, client):
    client.create_queue("mail", capacity=2, ttr=90)
    client.queue("mail").put_many(["x", "y"])
    page = visitor.page("queue", name="mail")
    assert '<span class="figure">2</span><span>ready</span>' in page
    assert "1 min 30 s" in page
    assert MEANINGS["capacity"] in page
    assert words.REASONS["full"].said in page


def test_a_queue_names_each_limit_once_and_what_a_flow_waits_for(visitor, client):
    client.create_queue("mail")
    client.limits.set("mail", concurrency=3)
    client.queue("mail").put("x")
    later = client.queue("reports").put("x", delay=650)
    client.queue("flows").put("y", after=[later])
    page = visitor.page("queue", name="mail")
    assert page.count(words.REASONS["waiting"].said) == page.count(words.REASONS["no taker"].said) == 1
    assert "pgqueue limit set mail --concurrency 6" in page
    page = visitor.page("queue", name="flows")
    assert reasons.FLOWS.said in page
    assert "<code>pgqueue.dependencies</code> names them" in page
    assert words.REASONS["waiting"].said not in page


@pytest.mark.parametrize(
    ("state", "note"),
    [
        ("ready", ""),
        ("delayed", "in 10 min "),
        ("taken", socket.gethostname()),
        ("buried", "the disk is full"),
        ("done", ""),
    ],
)
def test_the_tasks_of_a_state(visitor, client, state, note):
    client.create_queue("mail", keep_done=60)
    queue = client.queue("mail")
    queue.put({"n": "ready one"}, priority=9)
    queue.put({"n": "delayed one"}, delay=650)
    for end in ("taken", "buried", "done"):
        queue.put({"n": f"{end} one"}, priority=1)
        task = queue.take(5)
        if end == "buried":
            task.bury(error="the disk is full")
        elif end == "done":
            task.ack()
    page = visitor.page("tasks", queue="mail", state=state)
    assert f"{state} one" in page
    assert page.count(" one") == 1
    assert note in page


def test_tasks_are_filtered_by_job_error_and_age(visitor, client, db):
    mail = client.queue("mail")
    for job in ("send", "read"):
        mail.put({"job": job, "args": {"n": 1}})
        mail.take(5).bury(error=f"{job} failed: ValueError")
    assert "send(n=1)" in visitor.page("tasks", queue="mail", state="buried", job="send")
    assert "read(n=1)" not in visitor.page("tasks", queue="mail", state="buried", job="send")
    assert "read(n=1)" in visitor.page("tasks", queue="mail", state="buried", error="read failed")
    assert "and matches" in visitor.page("tasks", queue="mail", state="buried", older="1h")
    db.execute("UPDATE pgqueue.task SET created_at = created_at - interval '2 h'")
    assert "read(n=1)" in visitor.page("tasks", queue="mail", state="buried", older="1h")


def test_tasks_are_filtered_by_key_lane_and_data(visitor, client):
    mail = client.queue("mail")
    for n in range(3):
        mail.put({"n": n, "to": f"number {n}"}, key=f"key {n}", lane="a" if n else "b", delay=60)

    def found(**given: str) -> list[int]:
        page = visitor.page("tasks", queue="mail", state="delayed", **given)
        return [n for n in range(3) if f"number {n}" in page]

    assert found(key="key 1") == [1]
    assert found(lane="a") == [1, 2]
    assert found(contains='{"n": 2}') == [2]
    assert found(lane="b", contains='{"n": 2}') == []
    assert "name it too" in visitor.page("tasks", lane="a")
    assert 'value="{&#34;n&#34;: 2}"' in visitor.page("tasks", queue="mail", contains='{"n": 2}')


@pytest.mark.slow
def test_a_search_that_takes_too_long_can_go_on(visitor, client, monkeypatch):
    monkeypatch.setattr(tasks, "FROM_SEARCH", tasks.FROM_SEARCH.replace("after =>", "within => '0', after =>"))
    client.queue("mail").put_many([{"n": n, "text": f"number {n}"} for n in range(30)])
    path, pages, found = f"tasks?{urlencode({'queue': 'mail', 'contains': json.dumps({'n': 20})})}", 0, ""
    while path:
        page = visitor.page(path)
        found, pages = found + page, pages + 1
        path = page.partition('rel="next" href="')[2].partition('"')[0].replace("&amp;", "&")
        assert ("Search on" in page) == bool(path)
    assert pages > 20
    assert found.count("number 20") == 1
    assert "was found in a second" in found


def test_tasks_come_page_by_page_by_a_marker(visitor, client):
    client.queue("mail").put_many([f"number {n:03}" for n in range(120)])
    found, path = "", "tasks?queue=mail&state=ready"
    pages = 0
    while path:
        page = visitor.page(path)
        found += page
        pages += 1
        path = page.partition('rel="next" href="')[2].partition('"')[0].replace("&amp;", "&")
    assert pages == 3
    assert [n for n in range(120) if f"number {n:03}" not in found] == []


def test_a_task_is_found_by_its_id_and_by_its_key(visitor, client):
    task = client.queue("mail").put("x", key="for ada")
    client.queue("mail").put("y")
    for page in (
        visitor.page("tasks", find=task.id),
        visitor.page("tasks", queue="mail", find="for ada"),
    ):
        assert page.count('href="task?id=') == 1
        assert f"task?id={task.id}" in page
    assert "No task has this id" in visitor.page("tasks", find="for ada")
    assert "No task has this id" in visitor.page("tasks", find="9" * 30)


def test_a_task_shows_its_data_attempts_progress_and_result(visitor, client):
    queue = client.queue("mail")
    queue.put({"to": "ada"})
    task = queue.take(5)
    task.progress(0.25)
    assert "25 %" in visitor.page("task", id=task.id)
    task.release(error="the server said no")
    task = queue.take(5)
    page = visitor.page("task", id=task.id)
    assert "&#34;to&#34;: &#34;ada&#34;" in page
    assert "the server said no" in page
    task.finish({"sent": True}, keep=60)
    page = visitor.page("task", id=task.id)
    assert "&#34;sent&#34;: true" in page
    assert "The data is gone with the task." in page


def test_the_flow_of_a_task_is_a_graph_with_links(visitor, client):
    first = Put("work", "first")
    others = [Put("work", n, after=first) for n in range(3)]
    ids = client.put_graph([first, *others, Put("work", "last", after=others)])
    page = visitor.page("task", id=ids[1])
    assert [id for id in ids if f'<a href="task?id={id}"' not in page] == []
    assert page.count('class="arrow"') == 6


def test_a_task_shows_what_shares_its_lane_and_its_limit(visitor, client):
    lane = [client.queue("orders").put(n, lane="ada").id for n in range(9)]
    client.queue("orders").take(5)
    page = visitor.page("task", id=lane[7])
    assert "In its lane" in page
    assert [id for id in lane if f'<a class="mono" href="task?id={id}">' in page] == [lane[0], *lane[2:7], lane[8]]
    assert page.count("before this task") == 5
    assert page.count("behind this task") == 1
    assert "Under its limit" not in page
    client.create_queue("imports")
    client.limits.set("imports", concurrency=2)
    files = client.queue("imports").put_many(range(4))
    client.queue("imports").take_many(2, 5)
    page = visitor.page("task", id=files[3])
    assert "Under its limit" in page
    assert "{limit}" not in page
    assert [id for id in files if f'<a class="mono" href="task?id={id}">' in page] == files[:3]
    assert page.count("before this task") == 1


def test_a_task_of_a_job_has_a_link_to_it(visitor, client):
    task = client.queue("mail").put({"job": "send <b>", "args": {}})
    assert 'href="job?queue=mail&amp;job=send+%3Cb%3E"' in visitor.page("task", id=task.id)


def test_long_data_is_cut_and_fetched_whole(visitor, client):
    task = client.queue("mail").put({"text": "long " * 200_000})
    page = visitor.page("task", id=task.id)
    assert len(page) < 20_000
    assert "Show all of it" in page
    assert "long long long" in page
    assert len(visitor.page("tasks", queue="mail")) < 20_000
    whole = visitor.get("data", id=task.id)
    assert whole.headers["content-type"].startswith("text/plain")
    assert json.loads(whole.text)["text"] == "long " * 200_000


def test_failures_are_grouped_by_job_and_error(visitor, client):
    queue = client.queue("mail")
    for job, error, times in (("send", "refused", 3), ("send", "timed out", 2), ("read", "refused", 1)):
        for _ in range(times):
            queue.put({"job": job, "args": {}})
            queue.take(5).bury(error=error)
    page = visitor.page("failures")
    assert page.count("Retry all of these") == 3
    assert page.index("read") < page.index("timed out") < page.index(">3</a>")  # the newest first


def test_workers_show_what_they_run(visitor, client, db):
    worker = client.queue("mail")
    worker.put("x")
    task = worker.take(5)
    session = value(db, "SELECT session FROM pgqueue.takes")
    db.execute("SELECT pgqueue.register_worker(1, '{mail}', '{send}', 4, session => %s)", (session,))
    page = visitor.page("workers")
    assert f"task?id={task.id}" in page
    assert "4 at once" in page


def test_workers_are_shown_page_by_page(visitor, db, monkeypatch):
    monkeypatch.setattr(workers, "N", 3)
    db.execute("SELECT pgqueue.open_session(label => 'host:1:worker')")
    for number in range(1, 6):
        db.execute("SELECT pgqueue.register_worker(%s, '{mail}', name => %s)", (number, f"worker{number // 3}"))
    page = visitor.page("workers")
    assert page.count('class="card worker"') == 3
    (rest,) = re.findall(r'href="(workers[^"]+)"', page)
    page = visitor.page(unescape(rest))
    assert page.count('class="card worker"') == 2
    assert 'rel="next"' not in page
    assert "First page" in page


def test_schedules_have_their_next_times_in_both_zones(visitor, client):
    client.schedules.set("nightly", "0 3 * * *", "reports", {"do": "all"}, tz="Asia/Tokyo")
    assert "Asia/Tokyo" in visitor.page("schedules")
    page = visitor.page("schedule", name="nightly")
    assert page.count(" 03:00:00</td>") == 5
    assert page.count("18:00:00 UTC</time>") == 5  # of the viewer, once the script has run
    assert "one task for all of them" in page
    client.schedules.run_now("nightly")
    client.queue("reports").take(5).finish({"pages": 7})
    assert "&#34;pages&#34;: 7" in visitor.page("schedule", name="nightly")


@pytest.mark.slow
def test_limits_batches_locks_nodes_and_routing_are_listed(visitor, client):
    client.create_queue("mail")
    client.limits.set("mail", concurrency=2)
    client.queue("mail").put_many([1, 2, 3])
    assert len(client.queue("mail").take_many(3, 5)) == 2
    with client.batch(name="the letters") as batch:
        client.queue("letters").put(1, batch=batch)
    client.exchanges.declare("events", "topic")
    client.exchanges.bind("mail", "events", "order.*")
    client.nodes.create("/config", {"rate": 20})
    client.statuses.set("page 7", {"seen": "<b>"})
    with client.lock("stock-taking"):
        page = visitor.page("coordination")
    assert "stock-taking" in page
    assert "/config" in page
    assert "page 7" in page
    assert "&#34;seen&#34;: &#34;&lt;b&gt;&#34;" in page
    assert "the letters" in visitor.page("batches")
    assert "order.*" in visitor.page("routing")
    assert '<tdclass="number"data-h="Waiting">1</td>' in "".join(visitor.page("limits").split())


def test_who_did_what_has_the_verbs_and_their_actors(open_dashboard, client):
    visitor = open_dashboard(actor=lambda request: request.headers.get("x-user"))
    client.create_queue("mail")
    visitor.http.headers["x-user"] = "ada <b>\x01"
    visitor.acted("pause", queue="mail", minutes="5")
    del visitor.http.headers["x-user"]
    visitor.acted("resume", queue="mail")
    assert [(deed.verb, deed.actor) for deed in client.audit.list()] == [("resume", None), ("pause", "ada <b>\\x01")]
    page = visitor.page("audit")
    assert "ada &lt;b&gt;" in page
    assert page.index("resume") < page.index(">pause<")


def test_the_actor_is_the_user_of_starlettes_authentication():
    def named(user: object) -> str | None:
        return checked(None, None, None, "t", True).name(Request({"type": "http", "user": user, "headers": []}))

    assert named(SimpleUser("ada")) == "ada"
    assert named(SimpleUser("x" * 500)) == "x" * 200
    assert named(UnauthenticatedUser()) is None
    assert named(None) is None


def test_dead_letters_are_listed(visitor, client):
    client.create_queue("mail", dead_letter="", dead_letter_key="graves", max_takes=1)
    client.queue("mail").put("x")
    client.queue("mail").take(5).release(error="the disk is full")
    page = visitor.page("routing")
    assert "delivery_limit" in page
    assert "the disk is full" in page


def test_the_server_has_its_version_connections_and_tables(visitor, db):
    page = visitor.page("server")
    assert value(db, "SHOW server_version").split()[0] in page
    assert '<td class="text">task</td>' in page


def test_each_check_and_each_reason_has_words(db):
    checks = {name for (name,) in rows(db, "SELECT name FROM pgqueue.health")} - {"schema_version"}
    assert checks == set(words.CHECKS)
    source = value(db, "SELECT prosrc FROM pg_proc WHERE oid = 'pgqueue.why(text)'::regprocedure")
    said = {part.split("'")[1] for part in source.split("QUERY SELECT")[1:]} - {"no queue"}
    assert said == set(words.REASONS)


def test_times_are_exact_in_the_page(visitor, client):
    before = datetime.now(UTC)
    task = client.queue("mail").put("x")
    shown: Any = visitor.page("task", id=task.id).partition('<time datetime="')[2].partition('"')[0]
    assert abs((datetime.fromisoformat(shown) - before).total_seconds()) < 30


@pytest.mark.slow
def test_a_role_that_may_only_monitor_is_told_why_data_is_missing(open_dashboard, client, db, watcher_dsn):
    task = client.queue("mail").put("the secret", key="the key")
    visitor = open_dashboard(watcher_dsn)
    for page in (visitor.page("tasks", queue="mail"), visitor.page("task", id=task.id)):
        assert "the secret" not in page
        assert "the key" not in page
        assert "look into it" in page
    for do in ("kick", "cancel", "delete"):
        refused = visitor.act(do, id=task.id)
        assert refused.status_code == 403, refused.text
    assert visitor.act("pause", queue="mail").status_code == 403
    assert client.peek(task).state == "ready"
