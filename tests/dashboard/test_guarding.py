"""Which requests get in, and which may act: tokens, origins, hosts, passwords; headers; and stored payloads."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser

import pytest
from sampling import sampled
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.testclient import TestClient
from statements import rows

from pgqueue.dashboard import HIDDEN
from pgqueue.dashboard.acting import ACTIONS
from pgqueue.dashboard.guarding import COOKIE, HEADERS, Guarded, Password, checked_hash, hash_password, is_password
from pgqueue.dashboard.pages import MENU

pytestmark = pytest.mark.once

ATTACK = """<script>alert(1)</script><img src=x onerror=alert(1)>"'`{{7*7}}\u202egnp.exe\x1b[2J"""
ARGUMENTS = {"queue": "mail", "state": "ready", "id": 1, "name": "nightly", "option": "capacity", "value": 5}


class Elements(HTMLParser):
    """The elements of a page, and the attributes that could run code."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.inline: list[str] = []
        self.foreign: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        for name, value in attrs:
            if name.startswith("on") or name == "style" or (name == "srcdoc"):
                self.inline.append(f"{tag} {name}={value}")
            if name in ("src", "href", "action", "formaction") and re.match(r"\s*([a-z]+:|//)", value or "", re.I):
                self.foreign.append(f"{tag} {name}={value}")


def harmless(page: str, scripts: int = 1) -> None:
    found = Elements(page)
    assert found.tags.count("script") == scripts
    assert "img" not in found.tags
    assert (found.inline, found.foreign) == ([], [])
    assert "\u202e" not in page
    assert "\x1b" not in page


@pytest.mark.parametrize(
    "path", [*(page.path for page in MENU), "queue?name=no", "nothing", "static/dashboard.css", "data?id=1"]
)
def test_every_answer_has_the_headers(visitor, path):
    found = visitor.get(path)
    assert {name: found.headers.get(name) for name in HEADERS} == HEADERS
    policy = found.headers["Content-Security-Policy"]
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy


@pytest.mark.parametrize("do", sampled([*ACTIONS], keep=6))
def test_an_action_is_refused_without_its_token_or_from_another_site(visitor, client, db, do):
    client.queue("mail").put("x")
    client.schedules.set("nightly", None, "mail", every=3600)
    before = (
        rows(db, "SELECT id, state FROM pgqueue.tasks"),
        rows(db, "SELECT paused_until, draining FROM pgqueue.queues"),
    )
    visitor.get()
    for headers in (
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://testserver", "Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {},
    ):
        assert visitor.act(do, headers=headers, **ARGUMENTS).status_code == 403
    for token in ("", visitor.http.cookies.get(COOKIE)[::-1]):
        form, headers = {"token": token, "confirmed": "yes"}, {"Origin": "http://testserver"}
        assert visitor.http.post(f"/act?do={do}&queue=mail", data=form, headers=headers).status_code == 403
    assert visitor.http.get(f"/act?do={do}&queue=mail").status_code == 405
    assert before == (
        rows(db, "SELECT id, state FROM pgqueue.tasks"),
        rows(db, "SELECT paused_until, draining FROM pgqueue.queues"),
    )


@pytest.mark.slow
@pytest.mark.parametrize("may_act", [None, lambda request: False, lambda request: "yes"])
def test_a_viewer_that_may_not_act_sees_no_button_and_is_refused(open_dashboard, client, may_act):
    task = client.queue("mail").put("x")
    client.schedules.set("nightly", None, "mail", every=3600)
    visitor = open_dashboard(may_act=may_act)
    for path in (*(page.path for page in MENU), "queue?name=mail", f"task?id={task.id}", "schedule?name=nightly"):
        assert 'method="post"' not in visitor.page(path)
    for do in ACTIONS:
        assert visitor.act(do, **{**ARGUMENTS, "id": task.id}).status_code == 403
    assert client.peek(task).state == "ready"


@pytest.mark.slow
def test_may_act_is_asked_of_each_request(open_dashboard, client):
    client.create_queue("mail")
    visitor = open_dashboard(may_act=lambda request: request.headers.get("x-user") == "ada")
    assert 'method="post"' not in visitor.page("queue", name="mail")
    visitor.http.headers["x-user"] = "ada"
    assert 'method="post"' in visitor.page("queue", name="mail")
    visitor.acted("drain", queue="mail")


@pytest.mark.slow
def test_data_is_masked_or_hidden_wherever_it_is_shown(open_dashboard, client):
    def show(request: Request, queue: str, value: object) -> object:
        if isinstance(value, dict):
            return value | {"password": "***"} if "password" in value else HIDDEN
        return HIDDEN

    queue = client.queue("mail")
    queue.put({"password": "the secret"}, priority=-1)
    queue.put("the secret")
    task = queue.take(5)
    task.progress({"password": "the secret"})
    other = client.queue("other").put({"password": "the secret", "text": "long " * 9000})
    done = client.queue("kept").put("x")
    client.queue("kept").take(5).finish("the secret", keep=60)
    client.schedules.set("nightly", None, "mail", {"password": "the secret"}, every=3600)
    visitor = open_dashboard(show_data=show)
    pages = [visitor.page("tasks", queue="mail", state=state) for state in ("taken", "ready")]
    pages += [visitor.page("tasks"), visitor.page("schedule", name="nightly"), visitor.page("schedules")]
    pages += [visitor.page("task", id=one.id) for one in (task, other, done)]
    pages.append(visitor.get("data", id=other.id).text)
    for page in pages:
        assert "the secret" not in page
    assert "***" in pages[0]


def test_values_without_a_queue_are_hidden_where_data_is_masked(open_dashboard, client):
    client.nodes.create("/config", {"password": "the secret"})
    client.nodes.create("/empty")
    client.statuses.set("page 7", {"password": "the secret"})
    assert open_dashboard().page("coordination").count("the secret") == 2
    page = open_dashboard(show_data=lambda request, queue, value: value).page("coordination")
    assert "the secret" not in page
    assert "/config" in page
    assert page.count("<code>hidden</code>") >= 2


def test_masked_data_cannot_be_guessed_by_a_search(open_dashboard, client):
    client.queue("mail").put({"pin": 1234})
    visitor = open_dashboard(show_data=lambda request, queue, value: HIDDEN)
    assert "Data contains" not in visitor.page("tasks", queue="mail")
    given = {"queue": "mail", "state": "ready", "contains": '{"pin": 1234}'}
    assert visitor.get("tasks", **given).status_code == 400
    for confirmed in (False, True):
        assert visitor.act("delete_all", confirmed=confirmed, **given).status_code == 400
    assert "Data contains" in open_dashboard().page("tasks", queue="mail")


@pytest.mark.slow
def test_payloads_in_everything_that_is_stored_stay_text(visitor, client, db):
    name = ATTACK[:100]
    queue = client.create_queue(name, metadata={ATTACK: ATTACK}, dead_letter="", dead_letter_key="graves")
    queue.put({"job": ATTACK, "args": {ATTACK: ATTACK}}, lane=ATTACK, key=ATTACK)
    task = queue.take(5)
    task.progress({ATTACK: ATTACK})
    task.release(error=ATTACK)
    task = queue.take(5)
    client.queue("buried").put({"job": ATTACK, "args": {}})
    failed = client.queue("buried").take(5).bury(error=f"Traceback\n{ATTACK}")
    client.queue("kept").put("x")
    done = client.queue("kept").take(5).finish({ATTACK: ATTACK}, keep=60)
    client.schedules.set(ATTACK, None, name, {ATTACK: ATTACK}, every=3600)
    client.exchanges.declare(ATTACK, "topic")
    client.exchanges.bind(name, ATTACK, ATTACK)
    client.nodes.create("/config", {ATTACK: ATTACK})
    client.limits.set("buried", ATTACK, concurrency=1)
    db.execute(
        "SELECT pgqueue.register_worker(1, %s, %s, 1, name => %s, version => %s)",
        ([name], [ATTACK], ATTACK, ATTACK[:50]),
    )
    client.statuses.set(ATTACK[:200], {ATTACK: ATTACK})
    with client.lock(ATTACK):
        for path in (page.path for page in MENU):
            harmless(visitor.page(path))
    harmless(visitor.page("queue", name=name))
    for state in ("ready", "taken", "buried"):
        harmless(visitor.page("tasks", queue=name, state=state, job=ATTACK, error=ATTACK, older="1d"))
    given = {"queue": name, "key": ATTACK, "lane": ATTACK, "contains": json.dumps(ATTACK)}
    harmless(visitor.page("tasks", **given))
    harmless(visitor.act("delete_all", confirmed=False, **given, state="ready").text)
    harmless(visitor.page("tasks", queue="buried", state="buried"))
    harmless(visitor.page("tasks", queue=name, find=ATTACK))
    harmless(visitor.page("failures", queue=ATTACK))
    for one in (task, failed, done):
        harmless(visitor.page("task", id=one.id))
    harmless(visitor.page("schedule", name=ATTACK))
    harmless(visitor.page("", q=ATTACK, after=ATTACK))
    for path in ("task", "queue", "job", "schedule", "tasks"):
        for argument in ("id", "name", "queue", "state", "after", "order", "job"):
            harmless(visitor.get(path, **{argument: ATTACK}).text)
    harmless(visitor.act("pause", queue=name, minutes=5).text)
    harmless(visitor.act(ATTACK).text)
    assert client.queue(name).info().paused_until is not None  # the button named it exactly


def test_the_sentence_of_an_action_cannot_be_sent_by_a_link(visitor):
    assert "You were paid" not in visitor.page("", said="You were paid")


@pytest.mark.parametrize(
    "back", ["https://evil.example/", "//evil.example", "../../admin", "act?do=drain", "queue\r\nX: y", "\\\\evil"]
)
def test_an_action_returns_to_no_other_site(visitor, client, back):
    client.create_queue("mail")
    visitor.get()
    form = {"token": visitor.http.cookies.get(COOKIE), "confirmed": "yes", "back": back}
    answer = visitor.http.post(
        "/act?do=truncate&queue=mail", data=form, headers={"Origin": "http://testserver"}, follow_redirects=False
    )
    assert (answer.status_code, answer.headers["location"]) == (303, "/")


@pytest.mark.parametrize(
    "path",
    [
        "static/../guarding.py",
        "static/%2e%2e/guarding.py",
        "static/..%2fguarding.py",
        "static//etc/passwd",
        "static/base.html",
        "../etc/passwd",
    ],
)
def test_static_files_are_those_of_the_dashboard(visitor, path):
    assert visitor.http.get(f"/{path}").status_code == 404


async def _hello(scope, receive, send):
    await PlainTextResponse("hello")(scope, receive, send)


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost:9188", 200),
        ("127.0.0.1", 200),
        ("[::1]:9188", 200),
        ("evil.example", 421),
        ("", 421),
        ("localhost@evil", 421),
    ],
)
def test_a_dashboard_of_loopback_answers_for_no_other_host(host, status):
    http = TestClient(Guarded(_hello, ("localhost", "127.0.0.1", "::1")))
    assert http.get("/", headers={"Host": host}).status_code == status


@pytest.mark.slow
def test_a_password_is_asked_of_each_request():
    http = TestClient(Password(_hello, hash_password("correct horse"), pause=0.0))
    refused = http.get("/")
    assert (refused.status_code, refused.headers["www-authenticate"].partition(" ")[0]) == (401, "Basic")
    for user, password in (("", "wrong horse"), ("ada", ""), ("ada", "correct horse ")):
        assert http.get("/", auth=(user, password)).status_code == 401
    for _ in range(2):
        assert http.get("/", auth=("ada", "correct horse")).text == "hello"
    assert http.get("/", auth=("ada", "wrong horse")).status_code == 401
    for header in ("Basic", "Basic %", "Bearer x", "Basic " + "A" * 5000, "Basic //79"):
        assert http.get("/", headers={"Authorization": header}).status_code == 401


def test_a_hash_is_of_one_password_and_tells_nothing():
    one, other = hash_password("correct horse"), hash_password("correct horse")
    assert one != other
    assert "horse" not in one
    assert is_password("correct horse", one)
    assert not is_password("correct horsf", one)
    with pytest.raises(ValueError, match="8 characters"):
        hash_password("short")
    for wrong in ("", "plain", one[:-2], one + ":x", one.replace("16384", "2")):
        with pytest.raises(ValueError, match="--hash-password"):
            checked_hash(wrong)
