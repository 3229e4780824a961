"""What people do in the admin, what it says to them, and what it leaves alone."""

import pytest
from browsing import Browser
from django.contrib.admin.models import LogEntry

from pgqueue import TaskNotTaken
from pgqueue.contrib.django.admin import TakePage, TaskPage
from pgqueue.contrib.django.admin.paging import MOST
from pgqueue.contrib.django.models import Take

pytestmark = pytest.mark.once


def put(db, queue="mail", **options):
    given = "".join(f", {name} => %s" for name in options)
    (id,) = db.execute(f"SELECT id FROM pgqueue.put(%s, '{{}}'{given})", [queue, *options.values()]).fetchone()
    return id


def buried(db, queue="mail"):
    task = put(db, queue)
    db.execute("SELECT pgqueue.bury(%s, error => 'no such address')", [task])
    return task


def taken(db, queue="mail"):
    task = put(db, queue)
    db.execute("SELECT pgqueue.take_id(%s)", [task])
    return task


def states(db):
    return dict(db.execute("SELECT id, state FROM pgqueue.tasks ORDER BY id").fetchall())


# --- on tasks


@pytest.mark.slow
def test_kick_makes_tasks_ready_that_are_buried_or_delayed(browser, db):
    tasks = [buried(db), put(db, delay="1 h"), put(db)]
    assert browser.act("task/", "kick", *tasks) == [
        "Kicked: 2 of 3 tasks.",
        f"Refused: task {tasks[2]} is neither buried nor delayed.",
    ]
    assert set(states(db).values()) == {"ready"}


def test_bury_sets_aside_whoever_holds_it_and_keeps_the_error(browser, db):
    tasks = [put(db), taken(db), buried(db)]
    assert browser.act("task/", "bury", *tasks) == ["Buried: 3 tasks."]
    assert set(states(db).values()) == {"buried"}
    assert db.execute("SELECT error FROM pgqueue.tasks WHERE id = %s", [tasks[2]]).fetchone() == ("no such address",)
    assert "no such address" in browser.page("task/?queue=mail&state=buried")


@pytest.mark.parametrize("page", ["task/", "take/"])
def test_release_takes_a_task_from_its_holder_whose_ack_is_refused_then(browser, db, blocking, page):
    queue = blocking().queue("mail")
    put(db)
    held, free = queue.take(0), put(db)
    chosen = [held.id, free] if page == "task/" else [held.id]
    told = browser.act(page, "release", *chosen)
    assert told[0].startswith("Released: 1")
    assert told[1:] == ([f"Refused: task {free} is not taken by any session."] if page == "task/" else [])
    assert states(db) == {held.id: "ready", free: "ready"}
    with pytest.raises(TaskNotTaken):
        held.ack()


def test_release_leaves_a_task_alone_that_another_session_has_by_now(browser, db, monkeypatch):
    task = taken(db)
    seen = Take(id=task, queue="mail", session=5, holder="who had it")
    monkeypatch.setattr(TakePage, "chosen", lambda *args: [seen])
    told = browser.act("take/", "release", task)
    assert told == ["Released: 0 of 1 take.", told[1]]
    assert told[1].startswith(f"Refused: task {task} is taken by ")
    assert states(db) == {task: "taken"}


def test_bury_from_the_list_of_takes(browser, db):
    task = taken(db)
    assert browser.act("take/", "bury", task) == ["Buried: 1 take."]
    assert states(db) == {task: "buried"}


def test_delete_asks_first_and_leaves_what_somebody_has(browser, db):
    tasks = [put(db), buried(db), taken(db)]
    asked = browser.post("task/", "remove", *tasks)
    assert asked.status_code == 200
    assert all(f'name="_selected_action" value="{task}"' in asked.content.decode() for task in tasks)
    assert len(states(db)) == 3
    (holder,) = db.execute("SELECT label FROM pgqueue.sessions").fetchone()
    assert browser.act("task/", "remove", *tasks, confirmed="yes") == [
        "Deleted: 2 of 3 tasks.",
        f"Refused: task {tasks[2]} is taken by {holder}.",
    ]
    assert states(db) == {tasks[2]: "taken"}


def test_a_task_that_is_gone_or_has_changed_since_the_list_was_shown_is_told_of(browser, db):
    changed, gone = buried(db), buried(db)
    db.execute("SELECT pgqueue.kick_task(%s)", [changed])
    db.execute("SELECT pgqueue.delete(%s)", [gone])
    told = browser.act("task/?queue=mail&state=buried", "kick", changed, gone)
    assert told[0] == "Kicked: 0 of 2 tasks."
    assert sorted(told[1:]) == sorted(
        [f"Refused: {gone} is gone.", f"Refused: task {changed} is neither buried nor delayed."]
    )
    assert browser.act("task/", "remove", gone) == ["Deleted: 0 of 1 task.", f"Refused: {gone} is gone."]


@pytest.mark.slow
def test_all_are_those_that_the_list_shows(browser, db):
    first = buried(db)
    db.execute(
        "INSERT INTO pgqueue.task (queue_id, data, state)"
        " SELECT queue_id, data, state FROM pgqueue.task, generate_series(1, %s)",
        [MOST + 50],
    )
    kept = put(db, "other")
    ticked = (first, 10**9)  # which is not there, and does not matter
    told = browser.act("task/?queue=mail&state=buried", "kick", *ticked, select_across="1")
    assert told == [f"Kicked: {MOST} tasks."]
    assert sorted(states(db).values()).count("buried") == 51
    assert LogEntry.objects.count() == MOST
    assert states(db)[kept] == "ready"


def test_refusals_are_not_told_without_end(browser, db):
    told = browser.act("task/", "kick", *(put(db) for _ in range(14)))
    assert told[0] == "Kicked: 0 of 14 tasks."
    assert len(told) == 12
    assert told[-1] == "Refused: 4 more."


def test_what_fails_changes_nothing(browser, db):
    first, last = buried(db), buried(db)
    db.execute(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'not this <b>one</b>'; END $$;"
        f"CREATE TRIGGER refuse BEFORE UPDATE ON pgqueue.task FOR EACH ROW WHEN (old.id = {last})"
        " EXECUTE FUNCTION refuse()"
    )
    (told,) = browser.act("task/", "kick", first, last)
    assert told.startswith("Nothing was changed: not this <b>one</b>")
    assert states(db) == {first: "buried", last: "buried"}
    assert not LogEntry.objects.exists()


def test_what_was_done_is_in_the_log_of_the_admin(browser, db):
    task, other, refused = buried(db), buried(db), taken(db)
    browser.act("task/", "kick", task, other, refused)
    browser.act("task/", "remove", task, confirmed="yes")
    entries = LogEntry.objects.values_list("user", "object_id", "object_repr", "change_message")
    assert set(entries) == {
        (browser.user.pk, str(task), f"{task} (mail)", "Kicked."),
        (browser.user.pk, str(other), f"{other} (mail)", "Kicked."),
        (browser.user.pk, str(task), f"{task} (mail)", "Deleted."),
    }
    assert "Kicked." in browser.page(f"task/{other}/history/")
    assert "Kicked." not in browser.page(f"task/{refused}/history/")


# --- on the page of one row


def test_the_page_of_a_task_has_the_buttons_that_fit_and_comes_back_to_itself(browser, db):
    task = buried(db)
    page = browser.page(f"task/{task}/change/")
    assert 'value="kick" formaction="/admin/pgqueue/task/"' in page
    assert 'value="release"' not in page
    response = browser.post("task/", "kick", task, from_page="yes")
    assert response.headers["Location"] == f"/admin/pgqueue/task/{task}/change/"
    assert browser.told(response.headers["Location"]) == ["Kicked: 1 task."]
    asked = browser.post("task/", "remove", task, from_page="yes").content.decode()
    assert 'name="from_page"' in asked
    response = browser.post("task/", "remove", task, from_page="yes", confirmed="yes")
    assert response.headers["Location"] == "/admin/pgqueue/task/"


# --- on queues


@pytest.mark.slow
def test_pause_asks_for_how_long_and_resume_ends_it(browser, db):
    put(db)
    assert "minutes" in browser.post("queue/", "pause", "mail").content.decode()
    assert "Ensure this value" in browser.post("queue/", "pause", "mail", confirmed="yes", minutes="0").content.decode()
    paused = "SELECT extract(epoch FROM paused_until - now())::int BETWEEN 290 AND 300 FROM pgqueue.queues"
    assert db.execute(paused).fetchone() == (None,)
    assert browser.act("queue/", "pause", "mail", confirmed="yes", minutes="5") == ["Paused for 5 min: 1 queue."]
    assert db.execute(paused).fetchone() == (True,)
    assert 'value="resume"' in browser.page("queue/mail/change/")
    assert browser.act("queue/", "resume", "mail") == ["Resumed: 1 queue."]
    assert db.execute(paused).fetchone() == (None,)
    assert 'value="resume"' not in browser.page("queue/mail/change/")


def test_draining(browser, db):
    put(db), put(db, "letters")
    assert browser.act("queue/", "drain", "mail", "letters") == ["Draining: 2 queues."]
    assert browser.act("queue/", "undrain", "letters") == ["Accepting puts: 1 queue."]
    assert db.execute("SELECT name FROM pgqueue.queues WHERE draining").fetchall() == [("mail",)]


def test_what_is_done_to_all_tasks_of_queues_says_to_how_many(browser, db):
    tasks = [buried(db), buried(db), buried(db, "letters"), taken(db), put(db, "other")]
    told = browser.act("queue/", "kick_all", "mail", "letters")
    assert told == ["Kicked 1 tasks of letters.", "Kicked 2 tasks of mail."]
    assert browser.act("queue/", "release_all", "mail") == ["Released 1 tasks of mail."]
    assert states(db) == dict.fromkeys(tasks, "ready")


def test_truncate_asks_first_with_the_number_of_tasks(browser, db):
    put(db), taken(db), put(db, "other")
    asked = browser.post("queue/", "truncate", "mail").content.decode()
    assert "All 2 tasks" in asked
    assert len(states(db)) == 3
    assert browser.act("queue/", "truncate", "mail", confirmed="yes") == ["Removed 2 tasks of mail."]
    assert len(states(db)) == 1
    assert browser.act("queue/", "truncate", "gone", confirmed="yes") == [
        "Truncated: 0 of 1 queue.",
        "Refused: gone is gone.",
    ]


# --- by whom


def test_an_action_sees_only_what_its_page_does(browser, db, monkeypatch):
    mine, theirs = buried(db), buried(db, "theirs")
    every = TaskPage.get_queryset
    monkeypatch.setattr(TaskPage, "get_queryset", lambda page, request: every(page, request).filter(queue="mail"))
    told = browser.act("task/", "kick", mine, theirs)
    assert told == ["Kicked: 1 of 2 tasks.", f"Refused: {theirs} is gone."]
    assert states(db) == {mine: "ready", theirs: "buried"}


@pytest.mark.slow
def test_each_action_needs_its_permission(django_db, db):
    task = buried(db)
    for permissions, may in (
        (["view_task"], []),
        (["change_task"], ["kick", "bury"]),
        (["view_task", "delete_task"], ["remove"]),
    ):
        clerk = Browser(*permissions)
        page = clerk.page(f"task/{task}/change/")
        assert [name for name in ("kick", "bury", "remove") if f'value="{name}" formaction' in page] == (
            [name for name in may if name != "bury"]
        )
        for action in {"kick", "bury", "remove"} - set(may):
            clerk.post("task/", action, task, confirmed="yes")
        assert states(db) == {task: "buried"}
    assert not LogEntry.objects.exists()
    Browser("view_take").post("take/", "release", taken(db))
    assert "taken" in states(db).values()
    Browser("view_queue", "change_queue").post("queue/", "truncate", "mail", confirmed="yes")
    assert len(states(db)) == 2


def test_an_action_is_posted_with_a_token(django_db, db):
    task = buried(db)
    browser = Browser(enforce_csrf_checks=True)
    assert browser.post("task/", "kick", task).status_code == 403
    browser.page(f"task/?action=kick&_selected_action={task}", status=400)
    browser.http.get("/admin/pgqueue/task/", {"index": "0"})
    assert states(db) == {task: "buried"}
