"""Prometheus: what a scrape says, read by prometheus-client's own parsers, also while the database is away."""

from __future__ import annotations

import gzip
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from typing import Any
from wsgiref.util import setup_testing_defaults
from wsgiref.validate import validator

import psycopg
import pytest
from commands import failed, invoke, started
from eventually import PATIENCE, Stopwatch, eventually, in_time
from hostile import STRINGS
from hurrying import hurry
from outages import away
from prometheus_client import CollectorRegistry, generate_latest, make_wsgi_app
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse
from psycopg.conninfo import make_conninfo
from statements import rows

import pgqueue
from pgqueue._calls.health import BatchStats, Check, LimitUse, ScheduleState
from pgqueue._calls.tallies import JobRuns, count_runs
from pgqueue._values import printable
from pgqueue.errors import NotAllowed
from pgqueue.monitors.exposition import OUTCOMES
from pgqueue.monitors.prometheus import PgqueueCollector, wsgi_app
from pgqueue.monitors.serving import serving

pytestmark = pytest.mark.once

Figures = dict[tuple[str, ...], float]


def registry(client: pgqueue.Client, *arguments: Any, **options: Any) -> CollectorRegistry:
    made = CollectorRegistry()
    made.register(PgqueueCollector(client, *arguments, **options))
    return made


def figures(text: str, parse: Callable[[str], Any] = parse) -> Figures:
    """Of each sample its value, by its name and the values of its labels."""
    return {(s.name, *s.labels.values()): s.value for family in parse(text) for s in family.samples}


def scrape(scraped: CollectorRegistry) -> Figures:
    return figures(generate_latest(scraped).decode())


@pytest.fixture
def nowhere() -> Iterator[pgqueue.Client]:
    """A client of a port at which nothing listens, and nothing else can."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        with pgqueue.Client(
            f"postgresql://somebody@127.0.0.1:{bound.getsockname()[1]}/any", connect_timeout=0.3
        ) as client:
            yield client


@pytest.fixture
def busy(blocking: Callable[..., pgqueue.Client]) -> pgqueue.Client:
    """A client with a task in every state."""
    client = blocking()
    mail = client.create_queue("mail", keep_done=60)
    mail.put_many(range(6))
    mail.put("later", delay=60)
    mail.take(timeout=0).ack()
    mail.take(timeout=0).bury()
    mail.take(timeout=0)
    for n in range(2):
        mail.put(n, lane="a")
    return client


BUSY = {
    ("pgqueue_up",): 1,
    ("pgqueue_sessions",): 1,
    ("pgqueue_tasks", "mail", "ready"): 4,
    ("pgqueue_tasks", "mail", "delayed"): 1,
    ("pgqueue_tasks", "mail", "taken"): 1,
    ("pgqueue_tasks", "mail", "buried"): 1,
    ("pgqueue_tasks", "mail", "blocked"): 1,
    ("pgqueue_kept_tasks", "mail"): 1,
    ("pgqueue_done_total", "mail"): 1,
    ("pgqueue_calls_total", "mail", "put"): 9,
    ("pgqueue_calls_total", "mail", "take"): 3,
    ("pgqueue_calls_total", "mail", "ack"): 1,
    ("pgqueue_calls_total", "mail", "bury"): 1,
}


def test_a_scrape_has_every_state_and_verb(busy):
    found = scrape(registry(busy))
    assert found.items() >= BUSY.items()
    assert 0 < found["pgqueue_oldest_ready_age_seconds", "mail"] < 60
    assert len([name for name, *_ in found if name == "pgqueue_calls_total"]) == 12


def test_a_scrape_has_the_checks_of_the_database(busy, db):
    found = scrape(registry(busy))
    checks = db.execute("SELECT name, status, unit FROM pgqueue.health").fetchall()
    assert checks
    for name, status, unit in checks:
        assert found["pgqueue_health_status", name] == {"ok": 0, "warn": 1, "bad": 2}[status]
        assert ("pgqueue_health_value", name, unit) in found


def test_openmetrics_has_the_same(busy):
    scraped = registry(busy)
    assert figures(openmetrics.generate_latest(scraped).decode(), parse_openmetrics).items() >= BUSY.items()


def test_every_metric_has_its_type_and_is_explained(busy):
    families = list(parse(generate_latest(registry(busy)).decode()))
    kinds = {family.name: family.type for family in families}
    assert kinds == {
        "pgqueue_up": "gauge",
        "pgqueue_tasks": "gauge",
        "pgqueue_kept_tasks": "gauge",
        "pgqueue_oldest_ready_age_seconds": "gauge",
        "pgqueue_done": "counter",
        "pgqueue_calls": "counter",
        "pgqueue_sessions": "gauge",
        "pgqueue_workers": "gauge",
        "pgqueue_limit_running": "gauge",
        "pgqueue_limit_waiting": "gauge",
        "pgqueue_limit_concurrency": "gauge",
        "pgqueue_limit_rate": "gauge",
        "pgqueue_batches": "gauge",
        "pgqueue_batch_tasks": "gauge",
        "pgqueue_schedule_late_seconds": "gauge",
        "pgqueue_schedule_last_timestamp_seconds": "gauge",
        "pgqueue_schedule_failed": "gauge",
        "pgqueue_job_runs": "counter",
        "pgqueue_job_timeouts": "counter",
        "pgqueue_job_wait_seconds": "histogram",
        "pgqueue_job_run_seconds": "histogram",
        "pgqueue_health_status": "gauge",
        "pgqueue_health_value": "gauge",
    }
    assert all(family.documentation for family in families)


def test_a_role_that_may_only_look_will_do(busy, db, dsn):
    role = f"pgqueue_test_{uuid.uuid4().hex[:12]}"
    db.execute(f"CREATE ROLE {role}; SELECT pgqueue.grant_monitor('{role}')")
    try:
        with pgqueue.Client(make_conninfo(dsn, options=f"-c role={role}")) as client:
            assert scrape(registry(client)).items() >= BUSY.items()
            with pytest.raises(NotAllowed):
                client.queue("mail").pop()
    finally:
        db.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


def test_it_is_read_at_each_scrape(blocking):
    client = blocking()
    scraped = registry(client)
    assert ("pgqueue_tasks", "q", "ready") not in scrape(scraped)
    for n in (1, 2):
        client.queue("q").put(n)
        assert scrape(scraped)["pgqueue_tasks", "q", "ready"] == n
    client.queue("q").truncate()
    found = scrape(scraped)
    assert found["pgqueue_tasks", "q", "ready"] == found["pgqueue_oldest_ready_age_seconds", "q"] == 0


def test_any_name_of_a_queue_is_a_label(blocking):
    client = blocking()
    names = ['a"b', "a\\b", "a\nb", "a\\nb", "почта 📫", "{a='b'} 1", " ", "a,b=1"]
    for name in names:
        client.queue(name).put(1)
    scraped = registry(client)
    for found in scrape(scraped), figures(openmetrics.generate_latest(scraped).decode(), parse_openmetrics):
        assert [found["pgqueue_tasks", name, "ready"] for name in names] == [1] * len(names)


def test_only_the_queues_that_were_asked_for(blocking):
    client = blocking()
    for name in ("a", "b"):
        client.queue(name).put(1)
    found = scrape(registry(client, ["b", "not there"]))
    assert {labels[0] for name, *labels in found if name == "pgqueue_tasks"} == {"b", "not there"}
    assert found["pgqueue_tasks", "not there", "ready"] == 0
    assert {labels[0] for name, *labels in scrape(registry(client, "a")) if name == "pgqueue_tasks"} == {"a"}


# --- while the database is away


def test_registering_asks_nothing_of_the_database(nowhere):
    made = registry(nowhere)
    with pytest.raises(ValueError, match="Duplicated timeseries"):  # so it knows the names
        made.register(PgqueueCollector(nowhere))


def test_a_database_that_is_away_is_a_figure(nowhere, caplog):
    scraped = registry(nowhere)
    assert scrape(scraped) == scrape(scraped) == {("pgqueue_up",): 0}
    (line,) = [line for line in caplog.messages if line.startswith("monitors")]  # once
    assert line.startswith("monitors cannot read the queues: cannot connect to PostgreSQL (host=127.0.0.1 port=")


def test_a_database_that_comes_back_is_read_again(blocking, pg_server, dsn, caplog):
    client = blocking()
    client.queue("q").put(1)
    hurry(client, connect_timeout=0.5)
    scraped = registry(client)
    with away(pg_server, dsn):
        eventually(lambda: scrape(scraped) == {("pgqueue_up",): 0})
    eventually(lambda: scrape(scraped).get(("pgqueue_tasks", "q", "ready")) == 1)
    assert caplog.messages[-1] == "monitors cannot read the queues: it works again"


@pytest.mark.slow
def test_a_database_that_hangs_does_not_hang_a_scrape(caplog):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        client = pgqueue.Client(f"postgresql://x@127.0.0.1:{silent.getsockname()[1]}/x", connect_timeout=PATIENCE)
        scraped = registry(client, timeout=0.1)

        def three_scrapes() -> float:
            watch = Stopwatch()
            for _ in range(3):
                assert scrape(scraped) == {("pgqueue_up",): 0}
            return watch()

        in_time(three_scrapes, within=2)
        readers = [thread for thread in threading.enumerate() if thread.name == "pgqueue-monitor-read"]
        assert len(readers) == 1  # and not one for each scrape
    readers[0].join(30)  # the connection is reset
    client.close()
    told = [line for line in caplog.messages if line.startswith("monitors")]
    assert told == ["monitors cannot read the queues: PostgreSQL did not answer within 0.1 s"]


def test_a_database_without_the_schema(empty_dsn, caplog):
    with pgqueue.Client(empty_dsn) as client:
        assert scrape(registry(client)) == {("pgqueue_up",): 0}
    assert "run `pgqueue migrate up`" in caplog.text


def test_a_closed_client_is_down(blocking):
    client = blocking()
    client.close()
    assert scrape(registry(client)) == {("pgqueue_up",): 0}


def test_scrapes_at_once_share_a_read(busy):
    scraped = registry(busy)
    found: list[Figures] = []
    threads = [threading.Thread(target=lambda: found.append(scrape(scraped))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(one.items() >= BUSY.items() for one in found)
    assert len(found) == 8


# --- where it is mounted


def test_as_a_wsgi_application(busy):
    app = validator(make_wsgi_app(registry(busy)))
    answer: dict[str, Any] = {}

    def start(status: str, headers: Any, exc_info: Any = None) -> Any:
        answer.update(status=status)
        return lambda data: None

    environ: dict[str, Any] = {}
    setup_testing_defaults(environ)
    environ["QUERY_STRING"] = ""
    body: Any = app(environ, start)
    try:
        text = b"".join(body).decode()
    finally:
        body.close()
    assert answer["status"] == "200 OK"
    assert figures(text).items() >= BUSY.items()


@pytest.mark.slow
def test_the_command_serves(dsn, busy):
    with started("--dsn", dsn, "metrics", "--port", "0", stdout=subprocess.PIPE, text=True) as process:
        said = process.stdout.readline()
        assert re.fullmatch(r"serving on http://127\.0\.0\.1:\d+/metrics\n", said)
        url = said.removeprefix("serving on ").strip()
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(url, timeout=10) as answer:
            assert answer.headers["Content-Type"].startswith("text/plain; version=")
            assert figures(answer.read().decode()).items() >= BUSY.items()
        accept = {"Accept": "application/openmetrics-text; version=1.0.0"}
        with opener.open(urllib.request.Request(url, headers=accept), timeout=10) as answer:
            assert figures(answer.read().decode(), parse_openmetrics).items() >= BUSY.items()
        with opener.open(f"{url}?name[]=pgqueue_up", timeout=10) as answer:
            assert figures(answer.read().decode()) == {("pgqueue_up",): 1}
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0


def asked(port, request):
    """What a server answers until it closes the connection."""
    with socket.create_connection(("127.0.0.1", port), timeout=30) as conn:
        conn.sendall(request)
        return b"".join(iter(lambda: conn.recv(10_000), b""))


@pytest.mark.parametrize("sent", [b"", b"GET /metrics HTTP/1.1", b"GET /metrics HTTP/1.1\r\nHost: x\r\n"])
def test_a_client_that_sends_nothing_is_left(nowhere, sent, capfd):
    with serving(PgqueueCollector(nowhere), "127.0.0.1", 0, silence=0.1) as port:
        assert asked(port, sent) == b""
    assert "Traceback" not in capfd.readouterr().err


def test_there_is_one_path(busy):
    with serving(PgqueueCollector(busy), "127.0.0.1", 0) as port:
        for path in (b"/", b"/x", b"/metrics/", b"/../metrics", b"/favicon.ico"):
            assert asked(port, b"GET %s HTTP/1.0\r\n\r\n" % path).startswith(b"HTTP/1.0 404 ")
        assert b"\npgqueue_up 1.0\n" in asked(port, b"GET /metrics HTTP/1.0\r\n\r\n")


def test_the_command_prints_once(dsn, busy):
    done = invoke("--dsn", dsn, "metrics", "--once")
    assert (done.returncode, done.stderr) == (0, "")
    assert figures(done.stdout).items() >= BUSY.items()
    done = invoke("--dsn", dsn, "metrics", "--once", "--queue", "other")
    assert figures(done.stdout)["pgqueue_tasks", "other", "ready"] == 0


def test_the_command_prints_that_the_database_is_away(nowhere):
    done = invoke("--dsn", nowhere.shell.core.settings.dsn, "metrics", "--once", "--timeout", "0.5")
    assert done.returncode == 1
    assert figures(done.stdout) == {("pgqueue_up",): 0}


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--port", "99999"], 2, "99999 is not in the range 0<=x<=65535"),
        (["--host", "no-such-host.invalid"], 1, "cannot listen at no-such-host.invalid:9187: "),
        (["--timeout", "0"], 2, "must be over 0"),
        (["--queue", ""], 2, "a queue's name has 1 to 200 characters"),
    ],
    ids=str,
)
def test_a_wrong_command_line_is_one_line(nowhere, arguments, code, said):
    assert said in failed(invoke("--dsn", nowhere.shell.core.settings.dsn, "metrics", *arguments), code)


def test_a_port_that_is_in_use_is_one_line(nowhere):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        line = failed(invoke("--dsn", nowhere.shell.core.settings.dsn, "metrics", "--port", str(port)), 1)
    assert line == f"cannot listen at 127.0.0.1:{port}: Address already in use"


def test_a_dsn_that_is_none_is_one_line():
    line = failed(invoke("--dsn", "nonsense", "metrics", "--once"), 1)
    assert line.startswith("this is not a DSN that PostgreSQL understands: ")


def test_without_prometheus_client_it_is_said_what_to_install(monkeypatch, nowhere):
    for name in list(sys.modules):
        if name.partition(".")[0] == "prometheus_client":
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    monkeypatch.delitem(sys.modules, "pgqueue.monitors.prometheus")
    line = failed(invoke("--dsn", nowhere.shell.core.settings.dsn, "metrics"), 1)
    assert line == "metrics need prometheus-client: run `pip install '.[metrics]'` in a checkout of pgqueue"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"timeout": 0}, "timeout must be over 0"),
        ({"queues": []}, "at least one queue name is needed"),
        ({"client": "postgresql://"}, "it needs a pgqueue.Client, not this str"),
    ],
    ids=str,
)
def test_what_cannot_be_is_refused(nowhere, options, said):
    with pytest.raises(ValueError, match=said):
        PgqueueCollector(**{"client": nowhere} | options)


# --- the text


OPENMETRICS = "application/openmetrics-text; version=1.0.0"


@pytest.mark.parametrize("query", ["", "name[]=pgqueue_up"], ids=["all", "one"])
@pytest.mark.parametrize("accept", [None, "text/plain", OPENMETRICS, f"{OPENMETRICS}; escaping=allow-utf-8"], ids=str)
@pytest.mark.parametrize("encoding", [None, "gzip"], ids=str)
def test_our_application_answers_as_prometheus_clients(busy, monkeypatch, query, accept, encoding):
    collector = PgqueueCollector(busy)
    found = collector._read()
    monkeypatch.setattr(collector, "_read", lambda: found)
    made = CollectorRegistry()
    made.register(collector)

    def answered(app: Any) -> Any:
        said: list[Any] = []
        environ: dict[str, Any] = {"QUERY_STRING": query}
        setup_testing_defaults(environ)
        environ |= {k: v for k, v in {"HTTP_ACCEPT": accept, "HTTP_ACCEPT_ENCODING": encoding}.items() if v}
        body: Any = validator(app)(environ, lambda status, headers, error=None: said.extend((status, headers)))
        try:
            text = b"".join(body)
        finally:
            body.close()
        return *said, gzip.decompress(text) if encoding else text

    assert answered(wsgi_app(collector)) == answered(make_wsgi_app(made))


@pytest.mark.parametrize("text", STRINGS.values(), ids=STRINGS)
def test_the_text_is_what_prometheus_client_writes(blocking, monkeypatch, text):
    client = blocking()
    for name in (text, "plain", 'a"b\\c\nd', printable.line(text) + " "):
        client.queue(name).put_many(range(3))
    collector = PgqueueCollector(client)
    found = collector._read()
    numbers = (0, 999_999, 1_000_000, 123_456_789, 10**15, 10**17, 2**63 - 1)
    for stats, number in zip(found.stats.values(), numbers, strict=False):
        stats |= {"ready": number, "done": number + 1, "oldest_ready_age": number / 7}
        stats["calls"]["put"] = number * 3
    odd = [Check(text, "bad", value, 'a"\n', "") for value in (float("inf"), float("-inf"), float("nan"), 1e-7, -2.5)]
    found.health.extend(odd)
    counts = [numbers[n % 7] for n in range(22)]
    found.limits.extend(LimitUse("q", text, text, *both, 3, 10**6) for both in ((1, None), (None, 1 / 60), (2, 7.5)))
    found.batches.append(BatchStats("open", 1, 10**7, 0))
    found.schedules.append(ScheduleState("q", text, 1e-7, 1.7e9 + 1 / 3, True))
    found.jobs.extend(JobRuns(text, job, 3, 1, 10**6, 0, 0, 1e-7, 2.5e9, counts, [0] * 22) for job in ("", "j", text))
    for one in (found, None):
        monkeypatch.setattr(collector, "_read", lambda one=one: one)
        made = CollectorRegistry()
        made.register(collector)
        assert collector.text() == generate_latest(made)
        assert collector.text(openmetrics=True) == openmetrics.generate_latest(made)


def test_a_scrape_has_the_runs_of_jobs(blocking, db):
    client = blocking()
    client.queue("mail").put(1)
    client.queue("other").put(1)
    waits, runs = [0] * 22, [0] * 22
    waits[0], runs[9], runs[21] = 3, 2, 1
    for queue in ("mail", "other"):
        one: Any = {"queue": queue, "job": "send", "done": 2, "failed": 1, "timeouts": 1, "waited": 0.5, "ran": 20000.5}
        call = count_runs(ord(queue[0]), 1, [one | {"waits": waits, "runs": runs}])
        assert client.shell.run(call) == 1
    db.execute("SELECT pgqueue.open_session()")
    db.execute("SELECT pgqueue.register_worker(1, '{mail}')")
    found = scrape(registry(client, "mail"))
    assert found["pgqueue_workers",] == 1
    assert {how: found["pgqueue_job_runs_total", "send", how, "mail"] for how in OUTCOMES} == {
        "done": 2,
        "failed": 1,
        "retried": 0,
        "cancelled": 0,
    }
    assert found["pgqueue_job_timeouts_total", "send", "mail"] == 1
    buckets = {key[2]: value for key, value in found.items() if key[0] == "pgqueue_job_run_seconds_bucket"}
    assert (buckets["0.5"], buckets["1.0"], buckets["14400.0"], buckets["+Inf"]) == (0, 2, 2, 3)
    assert found["pgqueue_job_run_seconds_sum", "send", "mail"] == 20000.5
    assert found["pgqueue_job_wait_seconds_count", "send", "mail"] == 3
    assert not [key for key in found if "job" in key[0] and "other" in key]


def test_a_scrape_has_the_use_of_limits(blocking):
    client = blocking()
    for queue in ("mail", "other"):
        client.queue(queue).put(0)
    client.limits.set("mail", concurrency=2)
    client.limits.set("mail", "send", rate=30, per=60, burst=1, argument="to")
    client.queue("mail").put_many(range(5))
    client.take_many(["mail"], 9)
    client.limits.set("other", concurrency=7)
    found = scrape(registry(client, "mail"))
    limits = {key: value for key, value in found.items() if key[0].startswith("pgqueue_limit")}
    assert limits == {
        ("pgqueue_limit_running", "", "", "mail"): 2,
        ("pgqueue_limit_waiting", "", "", "mail"): 4,
        ("pgqueue_limit_concurrency", "", "", "mail"): 2,
        ("pgqueue_limit_running", "to", "send", "mail"): 0,
        ("pgqueue_limit_waiting", "to", "send", "mail"): 0,
        ("pgqueue_limit_rate", "to", "send", "mail"): 0.5,
    }


def test_a_scrape_has_the_batches_that_are_not_done(blocking):
    client = blocking()
    queue = client.queue("mail")
    none = {("pgqueue_batches", state): 0 for state in ("open", "running", "failed")}
    assert scrape(registry(client)).items() >= none.items()
    with client.batch():
        pass  # done
    with client.batch() as failed:
        queue.put_many(range(2), batch=failed)
    queue.take().ack()
    queue.take().bury()
    with client.batch() as running:
        queue.put_many(range(5), batch=running)
    queue.take().ack()
    with client.batch() as opened:
        queue.put(0, batch=opened)
        eventually(lambda: failed.progress().state == "failed")
        found = scrape(registry(client))
    assert {key: value for key, value in found.items() if key[0].startswith("pgqueue_batch")} == {
        ("pgqueue_batches", "open"): 1,
        ("pgqueue_batches", "running"): 1,
        ("pgqueue_batches", "failed"): 1,
        ("pgqueue_batch_tasks", "open"): 5,
        ("pgqueue_batch_tasks", "failed"): 1,
    }


def test_a_scrape_has_the_schedules(blocking, db):
    client = blocking()
    for name in ("late", "paused", "well", "failed", "refused"):
        client.schedules.set(name, "0 9 * * *", "q", 1)
    db.execute("UPDATE pgqueue.schedule SET next_at = now() + interval '1 h'")
    db.execute("UPDATE pgqueue.schedule SET next_at = now() - interval '99 s' WHERE name IN ('late', 'paused')")
    client.schedules.pause("paused")
    client.schedules.run_now("failed")
    client.queue("q").take(timeout=5).bury()
    db.execute("UPDATE pgqueue.schedule SET error = 'no' WHERE name = 'refused'")
    found = scrape(registry(client, "q"))
    assert {key[2]: value for key, value in found.items() if key[0] == "pgqueue_schedule_failed"} == {
        "late": 0,
        "paused": 0,
        "well": 0,
        "failed": 1,
        "refused": 1,
    }
    late = {key[2]: value for key, value in found.items() if key[0] == "pgqueue_schedule_late_seconds"}
    assert 99 <= late.pop("late") < 200
    assert set(late.values()) == {0}
    last = {key[2]: value for key, value in found.items() if key[0] == "pgqueue_schedule_last_timestamp_seconds"}
    assert abs(last.pop("failed") - time.time()) < 60
    assert set(last.values()) == {0}
    assert found["pgqueue_health_status", "late_schedule"] == 1
    assert db.execute("SELECT detail FROM pgqueue.health WHERE name = 'late_schedule'").fetchone() == ("late",)
    assert not [key for key in scrape(registry(client, "other")) if key[0].startswith("pgqueue_schedule")]


def test_sessions_are_connected_clients(busy, db, dsn):
    """Not the holders within a client, and not what is left of one that died."""
    within = busy.session()
    assert within.queue("mail").take(timeout=0)
    with psycopg.connect(dsn, autocommit=True) as died:
        died.execute("SELECT pgqueue.open_session(label => 'died', grace => '1 h')")
    states = "SELECT state, parent IS NULL FROM pgqueue.sessions"
    eventually(lambda: sorted(rows(db, states)) == [("connected", False), ("connected", True), ("missing", True)])
    assert scrape(registry(busy))["pgqueue_sessions",] == 1


def test_a_client_that_subscribes_or_locks_has_a_session(blocking):
    for n, use in enumerate([lambda client: client.subscribe("news"), lambda client: client.lock("l")], 1):
        with use(blocking()):
            assert scrape(registry(blocking()))["pgqueue_sessions",] == n


def test_a_scrape_is_one_statement(busy, monkeypatch):
    calls = []
    run = busy.shell.run
    monkeypatch.setattr(busy.shell, "run", lambda call: calls.append(call) or run(call))
    assert figures(PgqueueCollector(busy).text().decode()).items() >= BUSY.items()
    assert len(calls) == 1
