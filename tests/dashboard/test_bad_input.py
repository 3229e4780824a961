"""Addresses that are not understood, things that are gone, and a database that is not as the dashboard needs it."""

from __future__ import annotations

import html
import re

import pytest
from eventually import eventually

from pgqueue.dashboard import dashboard

pytestmark = pytest.mark.once

NAME = '\u202e<b>\x07"&' + "ü" * 120  # 254 bytes


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("nothing", 404),
        ("queue", 400),
        ("queue?name=", 400),
        ("queue?name=no+such+queue", 404),
        ("queue?name=" + "x" * 300, 400),
        ("queue?name=%00", 400),
        ("queue?name=mail&span=century", 400),
        ("task", 400),
        ("task?id=x", 400),
        ("task?id=-1", 400),
        ("task?id=99999999999999999999", 400),
        ("task?id=%C2%B2", 400),
        ("task?id=999999", 404),
        ("data?id=999999", 404),
        ("data?id=x", 400),
        ("schedule?name=no", 404),
        ("schedule", 400),
        ("tasks?queue=mail&state=lost", 400),
        ("tasks?queue=mail&after=x", 400),
        ("tasks?queue=mail&after=[1]", 400),
        ("tasks?queue=mail&after=[1,2,3]", 400),
        ("tasks?queue=mail&after=" + "[" * 900, 400),
        ("tasks?queue=mail&older=soon", 400),
        ("tasks?queue=mail&older=-5", 400),
        ("tasks?queue=mail&older=nan", 400),
        ("tasks?queue=mail&job=%00", 400),
        ("tasks?queue=mail&contains={to:1}", 400),
        ("tasks?queue=mail&contains=" + "[" * 9000, 400),
        ("tasks?queue=mail&contains=%7B%22%5Cu0000%22:1%7D", 400),
        ("tasks?queue=mail&error=" + "x" * 2000, 400),
        ("jobs?order=luck", 400),
        ("job", 400),
        ("events?queue=%00", 400),
        ("act", 405),
    ],
)
def test_an_address_that_is_not_understood_gets_a_page_that_says_why(visitor, client, path, status):
    client.queue("mail").put("x")
    found = visitor.get(path)
    assert found.status_code == status, found.text
    assert "data-problem" in found.text
    assert "Traceback" not in found.text


@pytest.mark.parametrize(
    ("do", "given"),
    [
        ("nothing", {}),
        ("pause", {"queue": "mail", "minutes": "0"}),
        ("pause", {"queue": "mail", "minutes": "x"}),
        ("alter", {"queue": "mail", "option": "role", "value": "1"}),
        ("alter", {"queue": "mail", "option": "capacity", "value": "many"}),
        ("alter", {"queue": "mail", "option": "ttr", "value": "soon"}),
        ("kick_all", {"queue": "mail", "state": "ready"}),
        ("kick_all", {"queue": "mail", "state": "lost"}),
        ("kick", {"id": "x"}),
        ("delete", {"id": "999999"}),
        ("drain", {"queue": "no such queue"}),
        ("run_schedule", {"name": "no"}),
    ],
)
def test_an_action_that_is_not_understood_changes_nothing(visitor, client, do, given):
    task = client.queue("mail").put("x")
    assert visitor.act(do, **given).status_code in (400, 404)
    assert client.peek(task).state == "ready"


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (b"x" * 200_000, "application/x-www-form-urlencoded"),
        (b"{}", "application/json"),
        (b"a=1&" * 500, "application/x-www-form-urlencoded"),
    ],
)
def test_a_form_that_is_none_is_refused(visitor, content, kind):
    assert visitor.http.post("/act?do=drain", content=content, headers={"Content-Type": kind}).status_code == 400


def test_a_page_that_was_not_understood_leads_back_to_the_form(visitor, client):
    client.create_queue("mail")
    form = "tasks?queue=mail&key=k"
    found = visitor.http.get("/tasks?queue=mail&contains={to", headers={"Referer": f"http://testserver/{form}"})
    assert found.status_code == 400
    assert f'<a href="{form.replace("&", "&amp;")}">Back</a>' in found.text


def test_a_queue_that_is_gone_while_its_page_is_open(visitor, client):
    client.create_queue("mail")
    assert visitor.get("queue", name="mail").status_code == 200
    client.delete_queue("mail")
    found = visitor.get("queue", name="mail")
    assert found.status_code == 404
    assert "It is gone" in found.text
    assert visitor.act("pause", queue="mail").status_code == 404


def test_a_name_of_255_bytes_is_shown_and_acted_on(visitor, client):
    name = "\u202ename<b>" + "ж" * 100
    client.create_queue(name[:120])
    page = visitor.page()
    assert "\\u202e" in page
    visitor.acted("drain", queue=name[:120])
    assert client.queue(name[:120]).info().draining


def test_a_form_sends_back_a_name_that_it_shows_with_escapes(visitor, client):
    client.queue(NAME).put({"n": 1}, lane="a\u202eb\n")
    page = visitor.page("tasks", queue=NAME, lane="a\u202eb\n")
    fields = dict(re.findall(r'<input (?:type="hidden" )?name="([a-z_]+)" value="([^"]*)"', page))
    sent = {name: html.unescape(value) for name, value in fields.items()}
    assert sent["queue"] != NAME
    assert "1 task that is ready" in visitor.page("tasks", **sent)
    assert "404" not in visitor.page("tasks", **sent)
    assert visitor.get("tasks", **sent | {"queue": "other"}).status_code == 200  # it was typed anew


def test_a_database_without_the_schema_names_the_command(open_dashboard, empty_dsn):
    found = open_dashboard(empty_dsn).get()
    assert found.status_code == 503
    assert "pgqueue migrate up" in found.text


def test_an_older_schema_names_the_command(visitor, db):
    assert visitor.get("server").status_code == 200
    db.execute("DROP FUNCTION pgqueue.why(text) CASCADE")
    db.execute("SELECT pgqueue.create_queue('mail')")
    found = visitor.get("queue", name="mail")
    assert found.status_code == 503
    assert "pgqueue migrate up" in found.text


def test_connections_that_the_server_ended_are_made_anew(visitor, client, db):
    client.create_queue("mail")
    assert visitor.get("queue", name="mail").status_code == 200
    db.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()"
        " AND application_name LIKE 'pgqueue%'"
    )
    eventually(lambda: visitor.get("queue", name="mail").status_code == 200)


def test_a_server_that_cannot_be_reached_is_said_in_words(open_dashboard):
    found = open_dashboard("postgresql://127.0.0.1:1/nothing", connect_timeout=0.2).get()
    assert found.status_code == 503
    assert "does not answer" in found.text
    assert "asks again by itself" in found.text


@pytest.mark.parametrize("given", [{"may_act": True}, {"show_data": "all"}, {"title": ""}, {"title": "x" * 200}])
def test_an_option_that_is_not_valid_is_refused(given):
    with pytest.raises(ValueError, match=next(iter(given))):
        dashboard(**given)
