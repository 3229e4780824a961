"""The result backend of Celery without a worker: what it stores and reads, waiting, forks, and chords by hand."""

from __future__ import annotations

import os
import pickle
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from brokers import close_clients
from celery import Celery, states
from celery.app.task import Context
from celery.beat import Scheduler
from celery.exceptions import ChordError, ImproperlyConfigured
from celery.exceptions import TimeoutError as CeleryTimeoutError
from celery.result import EagerResult, GroupResult
from eventually import PATIENCE, Stopwatch, eventually
from kombu.exceptions import EncodeError
from psycopg.conninfo import conninfo_to_dict
from statements import column, rows, value

from pgqueue import errors
from pgqueue._engine import looks as looks_of_statuses
from pgqueue.contrib.celery import urls
from pgqueue.contrib.celery.clients import CLIENTS
from pgqueue.contrib.celery.results import PgqueueBackend
from pgqueue.contrib.celery.waiting import _is_wanted

pytestmark = pytest.mark.once

EXPIRES = "SELECT extract(epoch FROM expires_at - updated_at) FROM pgqueue.statuses WHERE key LIKE %s"


def url(dsn: str, **options: Any) -> str:
    known = conninfo_to_dict(dsn)
    given = {name: text for name, text in known.items() if name not in ("user", "password", "dbname")} | options
    query = "&".join(f"{name}={text}" for name, text in given.items())
    return f"pgqueue://{known['user']}:{known.get('password') or 'secret'}@/{known['dbname']}?{query}"


@pytest.fixture
def make(dsn: str) -> Iterator[Callable[..., Celery]]:
    """Makes applications of Celery whose results are in the test's database."""

    def app(options: str = "", /, **settings: Any) -> Celery:
        made = Celery("shop", broker="memory://", set_as_current=False)
        made.conf.update(result_backend=url(dsn, poll=3600) + options, **settings)
        return made

    yield app
    close_clients()


@pytest.fixture
def app(make: Callable[..., Celery]) -> Celery:
    return make()


# --- what is stored


def test_celery_finds_the_backend_by_its_url(app: Celery) -> None:
    assert type(app.backend) is PgqueueBackend
    assert app.AsyncResult("never").state == states.PENDING
    assert app.AsyncResult("never").result is None


@pytest.mark.parametrize("serializer", ["json", "pickle", "yaml"])
@pytest.mark.parametrize("result", [None, 0, "", [1, {"a": "ü"}], {"float": 1e16, "text": "a\0b"}])
def test_a_result_comes_back_as_its_serializer_made_it(make: Any, serializer: str, result: Any) -> None:
    app = make(result_serializer=serializer, accept_content=[serializer])
    app.backend.store_result("t", result, states.SUCCESS)
    read = app.AsyncResult("t").get(timeout=0)
    assert read == result
    assert repr(read) == repr(result)  # 1e16 == 10**16


def test_bytes_survive(make: Any, db: psycopg.Connection) -> None:
    app = make(result_serializer="pickle", accept_content=["pickle"])
    app.backend.store_result("t", b"\x80\0\xff", states.SUCCESS)
    assert app.AsyncResult("t").get(timeout=0) == b"\x80\0\xff"
    assert column(db, "SELECT value->>'state' FROM pgqueue.statuses") == ["SUCCESS"]


def test_a_compressed_result_is_read(make: Any, db: psycopg.Connection) -> None:
    app = make(result_compression="gzip")
    app.backend.store_result("t", "x" * 10_000, states.SUCCESS)
    assert app.AsyncResult("t").get(timeout=0) == "x" * 10_000
    assert value(db, "SELECT length(value::text) FROM pgqueue.statuses") < 1000


def test_the_state_of_a_result_is_readable_in_sql(app: Celery, db: psycopg.Connection) -> None:
    app.backend.store_result("t", {"total": 7}, states.SUCCESS)
    found = rows(db, "SELECT key, value->>'state', (value->>'text')::json->'result'->>'total' FROM pgqueue.statuses")
    assert found == [("celery-task-meta-t", "SUCCESS", "7")]


def test_a_failure_has_its_exception_and_traceback(app: Celery) -> None:
    app.backend.mark_as_failure("t", ValueError("no such page", 7), traceback="Traceback: here")
    result = app.AsyncResult("t")
    with pytest.raises(ValueError, match="no such page") as caught:
        result.get(timeout=0)
    assert caught.value.args == ("no such page", 7)
    assert (result.state, result.traceback) == (states.FAILURE, "Traceback: here")
    assert result.date_done is not None


def test_custom_states_and_started(app: Celery) -> None:
    @app.task(bind=True, shared=False)
    def convert(self: Any) -> None: ...

    convert.backend.mark_as_started("t", pid=7)
    assert (app.AsyncResult("t").state, app.AsyncResult("t").info) == (states.STARTED, {"pid": 7})
    convert.update_state("t", "PROGRESS", {"percent": 50})
    assert (app.AsyncResult("t").state, app.AsyncResult("t").info) == ("PROGRESS", {"percent": 50})
    convert.backend.mark_as_retry("t", KeyError("k"), "tb")
    assert app.AsyncResult("t").state == states.RETRY
    convert.backend.mark_as_revoked("t", "stopped")
    assert app.AsyncResult("t").state == states.REVOKED


def test_success_stays(app: Celery) -> None:
    app.backend.store_result("t", 1, states.SUCCESS)
    app.backend.store_result("t", ValueError("late"), states.FAILURE)
    assert app.AsyncResult("t").get(timeout=0) == 1


def test_extended_results(make: Any) -> None:
    app = make(result_extended=True)
    request = Context(
        id="t", task="shop.add", args=[1], kwargs={"b": 2}, hostname="w1", retries=3, group="g", parent_id="p",
        delivery_info={"routing_key": "celery"},
    )  # fmt: skip
    request.children.append(app.AsyncResult("child"))
    app.backend.mark_as_done("t", 3, request)
    result = app.AsyncResult("t")
    assert (result.name, result.args, result.kwargs) == ("shop.add", [1], {"b": 2})
    assert (result.worker, result.retries, result.queue) == ("w1", 3, "celery")
    assert [child.id for child in result.children] == ["child"]


def test_an_ignored_result_is_not_stored(app: Celery, db: psycopg.Connection) -> None:
    app.backend.mark_as_done("t", 3, Context(id="t", ignore_result=True))
    assert rows(db, "SELECT FROM pgqueue.statuses") == []


@pytest.mark.parametrize("id", ["x" * 1000, "ü" * 101, "a:b/c d"])
def test_ids_of_any_length(app: Celery, id: str) -> None:
    app.backend.store_result(id, 1, states.SUCCESS)
    assert app.AsyncResult(id).get(timeout=0) == 1
    assert app.AsyncResult(id[:-1] + "y").state == states.PENDING


def test_forget(app: Celery, db: psycopg.Connection) -> None:
    app.backend.store_result("t", 1, states.SUCCESS)
    app.AsyncResult("t").forget()
    assert app.AsyncResult("t").state == states.PENDING
    assert rows(db, "SELECT FROM pgqueue.statuses") == []


def test_a_group_is_saved_restored_and_deleted(app: Celery) -> None:
    group = app.GroupResult("g", [app.AsyncResult("a"), app.AsyncResult("b")])
    group.save()
    assert GroupResult.restore("g", app=app) == group
    group.delete()
    assert GroupResult.restore("g", app=app) is None


def test_a_backend_is_pickled_with_its_url(app: Celery) -> None:
    app.set_current()
    result = pickle.loads(pickle.dumps(app.AsyncResult("t")))
    assert result.backend.url == app.backend.url
    assert result.backend.client is app.backend.client


def test_eager_results_use_no_backend(make: Any, db: psycopg.Connection) -> None:
    app = make(task_always_eager=True)

    @app.task(shared=False)
    def seven() -> int:
        return 7

    result = seven.delay()
    assert type(result) is EagerResult
    assert result.get() == 7
    assert rows(db, "SELECT FROM pgqueue.statuses") == []


# --- how long


@pytest.mark.parametrize(("expires", "seconds"), [(60, 60), (timedelta(hours=1), 3600), (None, None), (0, None)])
def test_results_expire(make: Any, db: psycopg.Connection, expires: Any, seconds: int | None) -> None:
    app = make(result_expires=expires)
    app.backend.store_result("t", 1, states.SUCCESS)
    assert column(db, EXPIRES, "celery-task-meta-t") == [seconds]


@pytest.mark.filterwarnings("ignore")
def test_failures_may_expire_later(make: Any, db: psycopg.Connection) -> None:
    app = make(result_expires=60, result_failure_expires=3600)
    app.backend.store_result("t", 1, states.SUCCESS)
    app.backend.store_result("f", ValueError(), states.FAILURE)
    assert column(db, EXPIRES, "celery-task-meta-%") == [60, 3600]


def test_cleanup_removes_expired_rows(make: Any, db: psycopg.Connection) -> None:
    app = make(result_expires=60)
    app.backend.store_result("t", 1, states.SUCCESS)
    db.execute("UPDATE pgqueue.status SET expires_at = clock_timestamp()")
    assert app.AsyncResult("t").state == states.PENDING
    app.tasks["celery.backend_cleanup"]()
    assert rows(db, "SELECT FROM pgqueue.status") == []


def test_stores_clean_where_no_listener_does(app: Celery, db: psycopg.Connection, monkeypatch: Any) -> None:
    app.backend.store_result("old", 1, states.SUCCESS)
    db.execute("UPDATE pgqueue.status SET expires_at = clock_timestamp()")
    monkeypatch.setattr("random.random", lambda: 0.0009)
    app.backend.store_result("new", 1, states.SUCCESS)
    assert column(db, "SELECT key FROM pgqueue.status") == ["celery-task-meta-new"]


def test_beat_cleans_up_each_day(make: Any) -> None:
    scheduler = Scheduler(app=make(result_expires=60), lazy=True)
    scheduler.setup_schedule()
    scheduler.install_default_entries(scheduler.schedule)
    assert scheduler.schedule["celery.backend_cleanup"].task == "celery.backend_cleanup"


# --- how large


def test_a_large_result(app: Celery) -> None:
    text = "x" * 5_000_000
    app.backend.store_result("t", text, states.SUCCESS)
    assert app.AsyncResult("t").get(timeout=0) == text


def test_a_result_over_the_limit_fails_its_task_alone(make: Any) -> None:
    app = make("&max_data_size=10000")
    with pytest.raises(EncodeError, match=r"too large.* the limit is 10000"):
        app.backend.mark_as_done("t", "x" * 20_000)
    app.backend.mark_as_failure("t", EncodeError("too large"), traceback="tb")
    app.backend.mark_as_failure("u", ValueError("x" * 20_000), traceback="tb" * 10_000)
    for id in ("t", "u"):
        with pytest.raises(EncodeError, match="too large"):
            app.AsyncResult(id).get(timeout=0)
    app.backend.mark_as_done("v", "fits")
    assert app.AsyncResult("v").get(timeout=0) == "fits"


# --- URLs


def test_a_url_is_shown_without_its_secrets(make: Any) -> None:
    app = make("&sslpassword=hidden")
    assert "secret" not in app.backend.as_uri()
    assert "hidden" not in app.backend.as_uri()
    assert app.backend.as_uri(include_password=True) == app.conf.result_backend
    assert urls.shown("pgqueue://u:p%40ss@h:5/d?listen_dsn=postgresql://x:y@z/") == "pgqueue://u:**@h:5/d?listen_dsn=**"
    assert urls.shown("embedded://") == "pgqueue+embedded://"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("pgqueue://u:secret@h/d?pool_size=many", "pool_size"),
        ("pgqueue://u:secret@h/d?pool_size=0", "pool_size"),
        ("pgqueue://u:secret@h/d?visibility=3", "no option 'visibility'"),
        ("pgqueue://u:sec@ret@h/d", "not a DSN"),
    ],
)
def test_a_url_that_cannot_be(given: str, message: str) -> None:
    app = Celery("shop", broker="memory://", backend=given, set_as_current=False)
    with pytest.raises(ImproperlyConfigured, match=message) as caught:
        _ = app.backend
    assert "secret" not in str(caught.value)


def test_a_url_without_a_host_is_the_usual_default(monkeypatch: pytest.MonkeyPatch, dsn: str) -> None:
    monkeypatch.setenv("PGQUEUE_DSN", dsn)
    client = CLIENTS.borrow("pgqueue://", {})
    try:
        assert client.state() == "running"
        assert client.dsn() == dsn
    finally:
        CLIENTS.give_back(client)


def test_options_beside_the_url(make: Any, db: psycopg.Connection) -> None:
    options = {"max_data_size": 10_000, "global_keyprefix": "shop", "visibility_timeout": 3600}
    app = make(result_backend_transport_options=options)
    assert app.backend.client.shell.settings.max_data_size == 10_000
    app.backend.store_result("t", 1, states.SUCCESS)
    assert column(db, "SELECT key FROM pgqueue.statuses") == ["shop_celery-task-meta-t"]


def test_all_threads_share_one_backend_and_one_client(make: Any) -> None:
    app, backends = make(), list[Any]()
    threads = [threading.Thread(target=lambda: backends.append(app.backend)) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {id(one.client) for one in backends} == {id(app.backend.client)}


# --- waiting


def test_get_waits_for_the_announcement_and_nothing_polls(app: Celery, db: psycopg.Connection) -> None:
    with later(app, "t", 7):
        watch = Stopwatch()
        assert app.AsyncResult("t").get(timeout=2 * PATIENCE) == 7
        assert watch() < PATIENCE


def test_a_get_that_is_over(app: Celery) -> None:
    for timeout in (0, 0.2):
        with pytest.raises(CeleryTimeoutError):
            app.AsyncResult("t").get(timeout=timeout)


@pytest.fixture
def looks(app: Celery, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The calls of the backend's client that read statuses."""
    connections, seen = app.backend.client.shell.connections, list[Any]()
    run = connections.run

    def noted(call: Any, **options: Any) -> Any:
        if "get_status" in call.sql:
            seen.append(call)
        return run(call, **options)

    monkeypatch.setattr(connections, "run", noted)
    return seen


def test_a_get_right_after_its_task_was_sent_looks_only_while_it_listens(app: Celery, monkeypatch: Any) -> None:
    sent, known = app.send_task("shop.add"), app.AsyncResult("of another process")
    shell, first = app.backend.client.shell, list[bool]()
    board, read = shell.listener().switchboard, looks_of_statuses.statuses

    def noted(keys: list[str]) -> Any:
        first.append(any(line.ears for line in board._lines.values()))
        return read(keys)

    monkeypatch.setattr(looks_of_statuses, "statuses", noted)
    for result, listens in ((sent, True), (known, False)):
        first.clear()
        with pytest.raises(CeleryTimeoutError):
            result.get(timeout=0.2)
        assert first[0] is listens


@pytest.mark.parametrize("timeout", [0, 2 * PATIENCE])
def test_a_result_that_is_there_before_its_get_listens(app: Celery, looks: list[Any], timeout: float) -> None:
    sent = app.send_task("shop.add")
    app.backend.store_result(sent.id, 7, states.SUCCESS)  # no client hears its announcement
    looks.clear()
    watch = Stopwatch()
    assert sent.get(timeout=timeout) == 7
    assert watch() < PATIENCE
    assert len(looks) == 1


def test_on_message_sees_each_state(app: Celery) -> None:
    seen, told = list[str](), threading.Event()

    def on_message(meta: dict[str, Any]) -> None:
        seen.append(meta["status"])
        told.set()

    app.backend.store_result("t", {"percent": 10}, "PROGRESS")

    def finish() -> None:
        told.wait(PATIENCE)
        app.backend.store_result("t", 7, states.SUCCESS)

    thread = threading.Thread(target=finish)
    thread.start()
    assert app.AsyncResult("t").get(timeout=PATIENCE, on_message=on_message) == 7
    thread.join()
    assert seen == ["PROGRESS", "SUCCESS"]


def test_on_interval_is_called_while_get_waits(app: Celery) -> None:
    calls = list[int]()

    def on_interval() -> None:
        calls.append(1)
        app.backend.store_result("t", 7, states.SUCCESS)

    assert app.AsyncResult("t").get(timeout=PATIENCE, interval=0.1, on_interval=on_interval) == 7
    assert calls == [1]


def test_without_a_function_of_its_caller_get_has_no_intervals(app: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = list[Any]()
    monkeypatch.setattr(
        type(app.backend), "wait_for_pending", lambda self, result, on_interval=None, **kw: seen.append(on_interval)
    )
    app.AsyncResult("t").get()
    app.AsyncResult("t").get(on_interval=print)
    assert [_is_wanted(one) for one in seen] == [False, True]


def test_a_failed_parent_ends_a_get(app: Celery) -> None:
    parent = app.AsyncResult("parent")
    with later(app, "parent", ValueError("lost"), states.FAILURE), pytest.raises(ValueError, match="lost"):
        app.AsyncResult("child", parent=parent).get(timeout=PATIENCE)


def test_the_error_of_a_chord_is_that_of_its_member(app: Celery) -> None:
    """As with Redis: get() asks for the errors of parents first, and the header is the parent of the body."""
    header = app.GroupResult("g", [app.AsyncResult("member")])
    with (
        later(app, ("member", ValueError("lost"), states.FAILURE), ("body", ChordError("member"), states.FAILURE)),
        pytest.raises(ValueError, match="lost"),
    ):
        app.AsyncResult("body", parent=header).get(timeout=PATIENCE)
    with pytest.raises(ChordError):
        app.AsyncResult("body").get(timeout=0)


def test_join_native_returns_results_in_order_as_they_come(app: Celery) -> None:
    group = app.GroupResult("g", [app.AsyncResult(f"t{n}") for n in range(5)])
    app.backend.store_result("t3", 3, states.SUCCESS)
    came = list[str]()
    with later(app, *[(f"t{n}", n) for n in (4, 0, 2, 1)]):
        for id, meta in group.iter_native(timeout=PATIENCE):
            came.append(id)
            assert meta["result"] == int(id[1:])
    assert came[0] == "t3"
    assert sorted(came) == ["t0", "t1", "t2", "t3", "t4"]
    assert group.join_native(timeout=0) == [0, 1, 2, 3, 4]
    assert group.get(timeout=0) == [0, 1, 2, 3, 4]


def test_a_callback_of_a_group_runs_when_all_are_ready(app: Celery) -> None:
    group, called = app.GroupResult("g", [app.AsyncResult("a"), app.AsyncResult("b")]), list[Any]()
    group.then(called.append)
    with later(app, ("a", 1), ("b", 2)):
        group.get(timeout=PATIENCE)
    assert [one.id for one in called] == ["g"]


@pytest.mark.slow
def test_hundreds_of_waiting_threads_share_one_listener(app: Celery, db: psycopg.Connection) -> None:
    got = list[int]()
    threads = [
        threading.Thread(target=lambda n=n: got.append(app.AsyncResult(f"t{n}").get(timeout=2 * PATIENCE)))
        for n in range(300)
    ]
    for thread in threads:
        thread.start()
    eventually(lambda: len(app.backend.client.shell.core.listener().switchboard._lines) == 300)
    connections = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    assert value(db, connections) <= 1 + 5 + 5  # the listener, and two pools
    for n in range(300):
        app.backend.store_result(f"t{n}", n, states.SUCCESS)
    for thread in threads:
        thread.join()
    assert sorted(got) == list(range(300))


def later(app: Celery, *results: Any) -> Any:
    """Store results from another thread, once this one listens."""
    pairs = [results] if isinstance(results[0], str) else list(results)

    class Storing:
        def __enter__(self) -> None:
            self.thread = threading.Thread(target=self.store)
            self.thread.start()

        def store(self) -> None:
            core = app.backend.client.shell.core
            eventually(lambda: core.running_listener is not None)
            eventually(lambda: any(line.listening for line in core.running_listener.switchboard._lines.values()))
            for id, result, *state in pairs:
                app.backend.store_result(id, result, *(state or [states.SUCCESS]))

        def __exit__(self, *exception: object) -> None:
            self.thread.join()

    return Storing()


# --- connections


def test_a_lost_connection_is_tried_again(app: Celery, db: psycopg.Connection) -> None:
    app.backend.store_result("t", 1, states.SUCCESS)
    for n in range(3):
        rows(
            db,
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()",
        )
        app.backend.store_result(f"t{n}", n, states.SUCCESS)
        assert app.AsyncResult(f"t{n}").get(timeout=0) == n


def test_which_errors_may_be_tried_again(app: Celery) -> None:
    assert app.backend.exception_safe_to_retry(errors.ConnectionLost("lost"))
    assert app.backend.exception_safe_to_retry(errors.ServerError("away"))
    assert not app.backend.exception_safe_to_retry(ValueError("x"))
    assert not app.backend.exception_safe_to_retry(errors.NotAllowed("no"))


def test_an_absent_server_is_an_error_in_time() -> None:
    app = Celery("shop", broker="memory://", set_as_current=False)
    app.conf.update(
        result_backend="pgqueue://u@127.0.0.1:1/d?connect_timeout=0.1",
        result_backend_transport_options={"retry_policy": {"max_retries": 1, "interval_start": 0}},
    )
    try:
        with pytest.raises(errors.ServerError):
            app.backend.store_result("t", 1, states.SUCCESS)
    finally:
        app.backend.client.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_forked_child_has_connections_of_its_own(app: Celery, db: psycopg.Connection) -> None:
    app.backend.store_result("before", 1, states.SUCCESS)
    with pytest.raises(CeleryTimeoutError):
        app.AsyncResult("x").get(timeout=0.01)  # starts the listener
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # a fork beside threads is the very case
        pid = os.fork()
    if not pid:
        code = 1
        try:
            app.backend.store_result("child", os.getpid(), states.SUCCESS)
            code = 0 if app.AsyncResult("before").get(timeout=PATIENCE) == 1 else 2
        finally:
            sys.stderr.flush()
            os._exit(code)
    assert app.AsyncResult("child").get(timeout=PATIENCE) == pid
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    app.backend.store_result("after", 2, states.SUCCESS)
    assert app.AsyncResult("after").get(timeout=PATIENCE) == 2


# --- chords, by hand


class Bodies:
    """The bodies that a chord published: in place of a broker."""

    def __init__(self, app: Celery) -> None:
        self.app, self.got = app, list[Any]()
        bodies = self

        @app.task(name="shop.body", shared=False)
        def body(results: Any) -> Any: ...

        body.apply_async = lambda args=None, *rest, **kw: bodies.got.append(args[0])  # type: ignore[method-assign]
        self.signature = body.s().set(task_id="body")

    def part(self, index: int, result: Any, state: str = states.SUCCESS, id: str | None = None) -> None:
        request = Context(id=id or f"m{index}", group="g", group_index=index, chord=dict(self.signature), errbacks=None)
        self.app.backend.on_chord_part_return(request, state, result)


@pytest.fixture
def bodies(app: Celery) -> Bodies:
    app.set_current()
    return Bodies(app)


def test_a_body_gets_the_results_in_order(bodies: Bodies, db: psycopg.Connection) -> None:
    bodies.app.backend.set_chord_size("g", 12)
    for n in reversed(range(12)):
        assert bodies.got == []
        bodies.part(n, {"n": n})
    assert bodies.got == [[{"n": n} for n in range(12)]]
    assert column(db, "SELECT key FROM pgqueue.statuses") == ["celery-taskset-meta-g.claim"]


def test_a_member_that_ran_twice_counts_once(bodies: Bodies) -> None:
    bodies.app.backend.set_chord_size("g", 2)
    bodies.part(0, "a")
    bodies.part(0, "b")
    assert bodies.got == []
    bodies.part(1, "c")
    assert bodies.got == [["b", "c"]]
    bodies.part(1, "d")
    assert len(bodies.got) == 1


def test_a_member_stores_its_result_and_its_part_in_one_transaction(bodies: Bodies, db: psycopg.Connection) -> None:
    bodies.app.backend.set_chord_size("g", 2)
    for index in range(2):
        id = f"m{index}"
        request = Context(id=id, group="g", group_index=index, chord=dict(bodies.signature), ignore_result=False)
        bodies.app.backend.mark_as_done(id, index + 10, request)
        if index == 0:
            stored = "SELECT xmin::text FROM pgqueue.status WHERE key ~ '[-:]m0'"
            assert len(column(db, stored)) == 2
            assert len(set(column(db, stored))) == 1
    assert bodies.got == [[10, 11]]
    assert [bodies.app.AsyncResult(f"m{index}").get(timeout=PATIENCE) for index in range(2)] == [10, 11]


def test_a_member_that_sets_its_state_itself_has_not_ended(bodies: Bodies) -> None:
    """As `self.update_state(state="SUCCESS")` in a task that still runs."""
    bodies.app.backend.set_chord_size("g", 2)
    request = Context(id="m0", group="g", group_index=0, chord=dict(bodies.signature), ignore_result=False)
    bodies.app.backend.store_result("m0", 1, states.SUCCESS, request=request)
    bodies.part(1, 2)
    assert bodies.got == []
    bodies.app.backend.mark_as_done("m0", 3, request)
    assert bodies.got == [[3, 2]]


def test_a_size_that_is_set_last(bodies: Bodies) -> None:
    bodies.part(0, "a")
    bodies.app.backend.set_chord_size("g", 2)
    assert bodies.got == []
    bodies.part(1, "b")
    assert bodies.got == [["a", "b"]]


def test_a_member_that_was_added_is_waited_for(bodies: Bodies) -> None:
    bodies.app.backend.set_chord_size("g", 1)
    bodies.app.backend.add_to_chord("g", bodies.app.AsyncResult("added"))
    bodies.part(0, "a")
    assert bodies.got == []
    bodies.part(0, "b", id="added")
    assert [sorted(got) for got in bodies.got] == [["a", "b"]]


def test_the_member_that_died_before_its_publish_publishes(bodies: Bodies, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its worker is gone between the claim and the body; it runs again, and no other member takes its place."""
    bodies.app.backend.set_chord_size("g", 2)
    bodies.part(0, "a")

    class Killed(BaseException):
        pass

    def die(self: Any, *args: Any) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(PgqueueBackend, "_publish", die)
        with pytest.raises(Killed):
            bodies.part(1, "b")
    bodies.part(0, "a")
    assert bodies.got == []
    bodies.part(1, "b")
    assert bodies.got == [["a", "b"]]


def test_a_failed_member_fails_the_body(bodies: Bodies) -> None:
    bodies.app.backend.set_chord_size("g", 3)
    bodies.part(0, 1)
    bodies.part(1, ValueError("lost"), states.FAILURE)
    assert bodies.app.AsyncResult("body").state == states.PENDING
    bodies.part(2, 3)
    with pytest.raises(ChordError, match=r"m1 raised ValueError\('lost'\)"):
        bodies.app.AsyncResult("body").get(timeout=0)
    assert bodies.got == []
    bodies.part(2, 3)  # again
    assert bodies.got == []


@pytest.mark.slow
def test_of_members_that_end_at_once_one_publishes(bodies: Bodies) -> None:
    """In 30 races of 8 threads."""
    backend = bodies.app.backend
    for n in range(30):
        backend.set_chord_size("g", 8)
        barrier = threading.Barrier(8)

        def end(index: int, barrier: threading.Barrier = barrier) -> None:
            barrier.wait()
            bodies.part(index, index)

        threads = [threading.Thread(target=end, args=(index,)) for index in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert bodies.got == [list(range(8))] * (n + 1)


@pytest.mark.slow
def test_a_chord_of_a_thousand(bodies: Bodies) -> None:
    bodies.app.backend.set_chord_size("g", 1000)
    for n in range(1000):
        bodies.part(n, n)
    assert bodies.got == [list(range(1000))]
