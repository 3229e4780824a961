"""The buttons: what each does, that it asks first where it must, and the remedies of standing queues."""

from __future__ import annotations

from typing import Any

import pytest

from pgqueue.dashboard.acting import ACTIONS

pytestmark = pytest.mark.once


def buried(client: Any, n: int = 3, queue: str = "mail", error: str = "refused") -> list[Any]:
    """Tasks that failed for good."""
    client.queue(queue).put_many([{"job": "send", "args": {"n": one}} for one in range(n)])
    return [client.queue(queue).take(5).bury(error=error) for _ in range(n)]


def test_a_queue_is_paused_resumed_and_drained(visitor, client):
    client.create_queue("mail")
    queue = client.queue("mail")
    assert "paused for 5 min" in visitor.acted("pause", queue="mail", minutes=5)
    assert queue.info().paused_until is not None
    visitor.acted("resume", queue="mail")
    assert queue.info().paused_until is None
    visitor.acted("drain", queue="mail")
    assert queue.info().draining
    visitor.acted("undrain", queue="mail")
    assert not queue.info().draining


@pytest.mark.parametrize(
    ("option", "given", "value"),
    [
        ("capacity", "50", 50),
        ("ttr", "15m", 900),
        ("keep_done", "2d", 172_800),
        ("expires", "1h", 3600),
        ("priority", "-3", -3),
        ("ttl", "", None),
    ],
)
def test_an_option_of_a_queue_is_set(visitor, client, option, given, value):
    client.create_queue("mail", ttl=60)
    visitor.acted("alter", queue="mail", option=option, value=given)
    assert getattr(client.queue("mail").info(), option) == value


@pytest.mark.slow
def test_failures_are_retried_by_job_and_error(visitor, client):
    buried(client, 3)
    buried(client, 2, error="timed out")
    given = {"queue": "mail", "state": "buried", "job": "send", "error": "refused"}
    asked = visitor.act("kick_all", confirmed=False, **given)
    assert "3 tasks of mail, buried, of job send, with “refused” in the error" in asked.text
    assert client.queue("mail").stats()["buried"] == 5
    assert "3 tasks of mail are ready again" in visitor.acted("kick_all", **given)
    assert client.queue("mail").stats()["buried"] == 2


def test_failures_without_an_error_or_a_job_are_retried_alone(visitor, client):
    buried(client, 2)
    for error in (None, "refused"):
        client.queue("mail").put("no job")
        client.queue("mail").take(5).bury(error=error)
    page = visitor.page("failures")
    assert page.count("Retry all of these") == 3
    for words, given in (("of no job, without an error", {"no_error": "yes"}), ("of no job", {"error": "refused"})):
        given |= {"queue": "mail", "state": "buried", "no_job": "yes"}
        assert words in visitor.act("kick_all", confirmed=False, **given).text
        assert "1 task of mail is ready again" in visitor.acted("kick_all", **given)
    assert client.queue("mail").stats()["buried"] == 2


def test_all_that_a_filter_lets_pass_is_put_again(visitor, client):
    client.create_queue("mail", keep_done=600)
    for n in range(3):
        client.queue("mail").put({"n": n}, lane="a", key=f"key {n}")
        client.queue("mail").take(5).ack()
    given = {"queue": "mail", "state": "done", "lane": "a", "contains": '{"n": 1}'}
    assert "Put all again" in visitor.page("tasks", **given)
    asked = visitor.act("put_again_all", confirmed=False, **given).text
    assert "one task of mail, done, of the lane “a”, whose data contains {&#34;n&#34;: 1}" in asked
    assert "stay as they are" in asked
    assert "1 task of mail is put again" in visitor.acted("put_again_all", **given)
    assert [task.data for task in client.queue("mail").tasks("ready").tasks] == [{"n": 1}]
    assert visitor.act("put_again_all", queue="mail", state="ready").status_code == 400
    assert [deed.verb for deed in client.audit.list()] == ["put_again"]


@pytest.mark.parametrize(("do", "left"), [("cancel_all", 0), ("delete_all", 0)])
def test_all_tasks_of_a_filter_are_cancelled_or_deleted(visitor, client, do, left):
    client.queue("mail").put_many(range(7))
    assert "7 tasks" in visitor.acted(do, queue="mail", state="ready")
    assert client.queue("mail").stats()["ready"] == left


def test_taken_tasks_are_released(visitor, client):
    client.queue("mail").put("x")
    client.queue("mail").take(5)
    assert "1 task of mail is released" in visitor.acted("release_all", queue="mail", state="taken")
    assert client.queue("mail").stats()["ready"] == 1


def test_a_queue_is_emptied(visitor, client):
    client.queue("mail").put_many(range(4))
    assert "4 tasks of mail are removed" in visitor.acted("truncate", queue="mail")
    assert client.queue("mail").stats()["total"] == 0


@pytest.mark.slow
def test_one_task_is_retried_cancelled_deleted_and_put_again(visitor, client):
    first, second, third, fourth = buried(client, 4)
    visitor.acted("kick", id=first.id)
    assert client.peek(first).state == "ready"
    assert "nothing was changed" in visitor.acted("kick", id=first.id)
    assert "cancelled" in visitor.acted("cancel", id=second.id)
    visitor.acted("delete", id=third.id)
    assert client.queue("mail").stats()["buried"] == 1
    assert f"with the data of task {fourth.id}" in visitor.acted("put_again", id=fourth.id)
    assert [task.data["args"]["n"] for task in client.queue("mail").tasks("ready").tasks] == [0, 3]


def test_a_schedule_is_run_now_paused_and_resumed(visitor, client):
    client.schedules.set("nightly", None, "reports", {"do": "all"}, every=3600)
    assert "has put task" in visitor.acted("run_schedule", name="nightly")
    assert client.queue("reports").stats()["ready"] == 1
    visitor.acted("pause_schedule", name="nightly")
    assert client.schedules.get("nightly").paused
    visitor.acted("resume_schedule", name="nightly")
    assert not client.schedules.get("nightly").paused


@pytest.mark.parametrize("do", [name for name, action in ACTIONS.items() if action.asks])
def test_what_cannot_be_taken_back_asks_first(visitor, client, do):
    (task,) = buried(client, 1)
    given = {"queue": "mail", "state": "buried"} if do.endswith("_all") or do == "truncate" else {"id": task.id}
    asked = visitor.act(do, confirmed=False, **given)
    assert asked.status_code == 200
    assert ACTIONS[do].asks in asked.text
    assert client.peek(task).state == "buried"


def test_an_action_returns_to_the_page_that_it_came_from(visitor, client):
    client.create_queue("a queue")
    back = visitor.act(
        "drain",
        queue="a queue",
        headers={"Origin": "http://testserver", "Referer": "http://testserver/queue?name=a+queue"},
    )
    assert str(back.url).endswith("/queue?name=a+queue")
    assert "a queue refuses puts from now on." in back.text
    assert "refuses puts from now on" not in visitor.page("queue", name="a queue")  # it is said once


def test_a_count_beyond_a_thousand_is_not_counted_to_its_end(visitor, client):
    client.queue("mail").put_many(range(1500))
    assert "more than 1,000 tasks of mail, ready" in visitor.act("delete_all", False, queue="mail", state="ready").text
