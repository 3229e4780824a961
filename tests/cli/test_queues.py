"""The commands for queues as a whole, and those that look: list, peek, peek-next, queues, stats."""

from __future__ import annotations

import json
import shlex
from datetime import UTC, datetime
from types import SimpleNamespace

import pytest
from commands import Commands, failed, invoke
from eventually import eventually
from psycopg.conninfo import make_conninfo
from roles import made

from pgqueue._calls import find
from pgqueue._calls import queue as calls
from pgqueue.cli import asking
from pgqueue.terminal import Progress

pytestmark = pytest.mark.once


@pytest.fixture
def queue(blocking):
    return blocking().queue("q")


@pytest.fixture
def terminal(monkeypatch):
    """Standard input is a terminal, as far as anybody asks."""
    monkeypatch.setattr(asking, "sys", SimpleNamespace(stdin=SimpleNamespace(isatty=lambda: True)))


# --- making and altering


def test_create_takes_the_options_of_the_library(command, queue):
    command.lines(
        "create-queue", "q", "ttr=60", "max-takes=5", "type=fifottl", 'metadata={"team": "post"}', "listed=true"
    )
    info = queue.info()
    assert (info.ttr, info.max_takes, info.type, info.listed) == (60, 5, "fifottl", True)
    assert info.metadata == {"team": "post"}
    assert command.fails(1, "create-queue", "q") == 'queue "q" exists already'
    command.lines("create-queue", "q", "--if-not-exists")


def test_alter_leaves_what_is_not_named(command, queue):
    command.lines("create-queue", "q", "ttr=60", "capacity=7")
    command.lines("alter", "q", "ttr=null", "delay=3")
    info = queue.info()
    assert (info.ttr, info.delay, info.capacity) == (None, 3, 7)
    assert "cannot be altered" in command.fails(2, "alter", "q", "type=fifo")
    assert command.fails(1, "alter", "other", "ttr=1")


def test_pause_and_resume(command, queue):
    queue.put(1)
    command.lines("pause", "q", "3600")
    assert queue.take(0) is None
    command.lines("resume", "q")
    assert queue.take(0) is not None


def test_kick(command, queue):
    for task in [queue.put(n) for n in range(4)]:
        task.bury()
    assert command.lines("kick", "q") == ["1"]
    assert command.lines("kick", "q", "-n", "2") == ["2"]
    queue.put("later", delay=60)
    assert command.lines("kick", "q", "-n", "10", "--delayed") == ["1"]
    assert command.lines("kick", "q", "--delayed") == ["1"]
    assert command.lines("kick", "q", "--delayed") == ["0"]


def test_kick_task(command, queue):
    queue.put(1).bury()
    queue.put(2, delay=60)
    assert command.lines("kick-task", "1", "2", "1") == ["1 ready", "2 ready", "1 ready"]
    assert "was not found" in command.fails(4, "kick-task", "3")


# --- what destroys asks


@pytest.mark.parametrize("line", ["delete 1", "truncate q", "delete-queue q"])
def test_what_destroys_is_refused_where_nobody_can_be_asked(command, queue, line):
    queue.put(1)
    assert command.fails(2, *line.split(), input="y\n").endswith("there is no terminal to ask at: give --yes")
    assert queue.peek(1).data == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "question"),
    [
        ("delete 1 2", "Delete 2 task(s), even if they are taken?"),
        ("truncate q", "Remove the 2 tasks of q?"),
        ("truncate q -s ready -s delayed", "Remove the tasks of q that are ready or delayed?"),
        ("delete-queue q", "Delete q and its 2 tasks?"),
    ],
)
def test_what_destroys_asks_at_a_terminal(command, queue, terminal, line, question):
    queue.put_many([1, 2])
    refused = command(*line.split(), input="n\n")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert question in refused.stderr
    assert refused.stderr.endswith("Aborted!\n")
    assert queue.stats()["total"] == 2
    assert command(*line.split(), input="y\n").returncode == 0
    assert queue.stats()["total"] == 0


def test_delete(command, queue):
    queue.put_many([1, 2, 3])
    assert command.lines("delete", "--yes", "1", "3") == ["1 deleted", "3 deleted"]
    assert "was not found" in command.fails(4, "delete", "-y", "1")
    assert queue.stats()["total"] == 1


def test_truncate_and_delete_queue(command, queue):
    queue.put_many([1, 2, 3])
    assert command.lines("truncate", "q", "-y") == ["3"]
    queue.put(4)
    assert "in use" in command.fails(1, "delete-queue", "q", "-y", "--if-empty")
    assert command.lines("delete-queue", "q", "-y") == ["1"]
    for verb in ("delete-queue", "truncate"):
        assert command.fails(1, verb, "q", "-y") == "there is no queue 'q'"


def test_truncate_of_some_states(command, queue):
    queue.put_many([1, 2])
    queue.put(3, delay=60)
    queue.bury(1)
    assert command.lines("truncate", "q", "-s", "ready", "--state", "delayed", "-y") == ["2"]
    assert queue.stats()["buried"] == queue.stats()["total"] == 1
    assert "'ripe' is not one of" in command.fails(2, "truncate", "q", "-s", "ripe", "-y")
    assert command.fails(1, "truncate", "none", "-s", "ready", "-y") == "there is no queue 'none'"


def test_truncate_shows_how_far_it_is(command, queue, monkeypatch):
    monkeypatch.setattr(calls, "PART", 2)
    queue.put_many(range(5))
    shown = []
    monkeypatch.setattr(Progress, "show", lambda self, done: shown.append((self._total, done)))
    assert command.lines("truncate", "q", "-y") == ["5"]
    assert shown == [(5, 2), (5, 4), (5, 5)]


@pytest.mark.parametrize(
    ("line", "total"),
    [
        ("kick-all q --state delayed", 3),
        ("cancel-all q --state delayed --yes", 3),
        ("delete-all q --state delayed --yes", 3),
        ("delete-all q --state delayed --older 0 --yes", None),  # the number that a filter lets pass is not known
        ("release-all q --older 0 --yes", None),
    ],
)
def test_verbs_for_all_tasks_show_how_far_they_are(command, queue, monkeypatch, line, total):
    monkeypatch.setattr(find, "MOST", 2)
    queue.put_many(range(3), delay=None if "release" in line else 60)
    queue.take_many(3, timeout=0)
    shown = []
    monkeypatch.setattr(Progress, "show", lambda self, done: shown.append((self._total, done)))
    assert command.lines(*line.split()) == ["3"]
    assert shown == [(total, 2), (total, 3)]


def test_verbs_for_many_ids_show_how_far_they_are(command, queue, monkeypatch):
    first, second = queue.put_many([1, 2])
    shown = []
    monkeypatch.setattr(Progress, "show", lambda self, done: shown.append((self._title, self._total, done)))
    assert "was not found" in command("bury", first, second + 1, second).stderr
    assert shown == [("bury", 3, 1), ("bury", 3, 2), ("bury", 3, 3)]


def test_drop_of_a_queue_with_a_taken_task_needs_force(command, queue):
    queue.put(1)
    queue.take(0)
    assert "in use" in command.fails(1, "delete-queue", "q", "-y")
    assert command.lines("delete-queue", "q", "-y", "--force") == ["1"]


def test_exchanges_and_bindings(command, db):
    db.execute("SELECT pgqueue.declare_exchange('logs', 'topic'), pgqueue.queue_id('q')")
    db.execute("SELECT pgqueue.bind('q', 'logs', 'db.#')")
    assert [line.split()[:5] for line in command.lines("exchanges")][1:] == [["logs", "topic", "true", "1", "0"]]
    assert [line.split() for line in command.lines("bindings")][1:] == [["logs", "db.#", "q"]]
    assert command.json("bindings", "--exchange", "logs", "-q", "q") == [
        {"exchange": "logs", "key": "db.#", "queue": "q"}
    ]
    assert command.json("bindings", "--exchange", "other") == []
    assert [found["name"] for found in command.json("exchanges")] == ["logs"]


# --- rights


@pytest.fixture
def role(dsn, db):
    with made(dsn, db) as roles:
        yield roles()


@pytest.mark.slow
def test_grants_are_listed_and_revoked(command, role):
    command.lines("grant", role, "put", "take")
    command.lines("grant", role, "look", "--pattern", "mail.*")
    command.lines("grant", role, "--queue", "bills")
    assert [line.split() for line in command.lines("privileges")] == [
        ["ROLE", "QUEUE", "PATTERN", "VERBS"],
        [role, "-", "*", "put", "take"],
        [role, "-", "mail.*", "look"],
        [role, "bills", "-", "put", "take", "look", "manage"],
    ]
    assert command.json("privileges", "--role", role, "-q", "bills")[0] == {
        "role": role,
        "verb": "put",
        "queue": "bills",
        "pattern": None,
    }
    assert command.json("privileges", "-r", "other") == []
    command.lines("revoke", role, "put", "take")
    command.lines("revoke", role, "-p", "mail.*", "look")
    assert {line["queue"] for line in command.json("privileges")} == {"bills"}
    command.lines("revoke", role, "-q", "bills")
    assert command.json("privileges") == []
    command.lines("grant", role)
    assert [line["verb"] for line in command.json("privileges")] == ["put", "take", "look", "manage", "share"]


def test_a_queue_is_restricted_and_opened(command, queue, role):
    command.lines("grant", role, "-q", "q", "put")
    command.lines("restrict", "q")
    assert queue.info().granted_to == [role]
    assert f'granted_to=["{role}"]' in command.lines("queues")[1]
    command.lines("restrict", "q", "--off")
    assert queue.info().granted_to is None


def test_wrong_grants(command, role, dsn):
    assert "put" in command.fails(2, "grant", role, "read")
    assert command.fails(2, "grant", role, "-q", "q", "-p", "*") == "give either --queue or --pattern"
    assert "share" in command.fails(2, "grant", role, "share", "-q", "q")
    assert command.fails(2, "grant", "no_such_role") == 'role "no_such_role" does not exist'
    assert command.fails(1, "revoke", role, "-q", "q") == 'there is no queue "q"'
    command.lines("grant", role, "manage")
    stranger = Commands(make_conninfo(dsn, user=role))
    for arguments in (("grant", role), ("revoke", role), ("restrict", "q")):
        assert "permission denied" in stranger.fails(1, *arguments)


# --- looking


@pytest.fixture
def one_of_each(queue):
    """The ids of tasks, by their state."""
    tasks = {"taken": queue.put("t", priority=-1), "buried": queue.put({"b": 1}), "delayed": queue.put("d", delay=3600)}
    queue.take(0)
    tasks["buried"].bury(error="no luck")
    tasks["ready"] = queue.put("r", key="k")
    return {state: task.id for state, task in tasks.items()}


def test_list_is_for_people(command, one_of_each):
    heading, taken, ready, delayed, buried = command.lines("list", "q")
    assert heading.split() == ["ID", "STATE", "PRIORITY", "ATTEMPTS", "REMARK", "DATA"]
    assert taken.split()[:4] == ["1", "taken", "-1", "0"]
    assert buried.split() == ["2", "buried", "0", "0", "no", "luck", '{"b":', "1}"]
    assert "until 2" in delayed
    assert ready.split() == ["4", "ready", "0", "0", "-", '"r"']
    at = heading.index("DATA")
    assert [line[at:] for line in (buried, ready)] == ['{"b": 1}', '"r"']


@pytest.mark.slow
def test_list_is_for_scripts(command, one_of_each):
    tasks = sorted(command.json("list", "q"), key=lambda task: task["id"])
    assert {task["state"]: task["id"] for task in tasks} == one_of_each
    assert list(tasks[3]) == (
        shlex.split("id queue state priority attempts run_at buried_at deadline holder error lane key data")
    )
    assert (tasks[3]["key"], tasks[3]["data"], tasks[1]["error"]) == ("k", "r", "no luck")
    for state, id in one_of_each.items():
        assert [task["id"] for task in command.json("list", "q", "--state", state)] == [id]
    assert [task["id"] for task in command.json("list", "q", "-n", "2", "--skip", "1")] == [4, 3]
    assert command.json("list", "q", "--state", "done") == []


def test_data_cannot_speak_to_the_terminal(command, queue):
    queue.put("x" * 200).bury(error="\x1b[31mred\nand more")
    line = command.lines("list", "q")[1]
    assert "\x1b" not in line
    assert "\\x1b[31mred\\nand more" in line
    assert line.endswith("x…")


def test_peek(command, one_of_each):
    lines = dict(line.split(maxsplit=1) for line in command.lines("peek", one_of_each["buried"]))
    assert datetime.fromisoformat(lines.pop("buried_at")) <= datetime.now(UTC)
    assert lines == {
        "id": "2",
        "queue": "q",
        "state": "buried",
        "priority": "0",
        "attempts": "0",
        "error": "no luck",
        "data": '{"b": 1}',
    }
    assert "task 99 was not found" in command.fails(4, "peek", "99")


def test_peek_next(command, one_of_each):
    for state in ("ready", "delayed", "buried"):
        assert command.json("peek-next", "q", "--state", state)[0]["id"] == one_of_each[state]
    command.lines("create-queue", "empty")
    assert command.finds_nothing("peek-next", "empty")


def test_queues(command, blocking):
    blocking().create_queue("mail", ttr=60, capacity=7)
    blocking().create_queue("post")
    heading, mail, post = command.lines("queues")
    assert heading.split() == ["QUEUE", "CREATED", "OPTIONS"]
    assert mail.endswith("  ttr=60 capacity=7")
    assert post.startswith("post   20")
    (info,) = command.json("queues", "--prefix", "ma")
    assert (info["name"], info["ttr"], info["paused_until"], info["metadata"]) == ("mail", 60, None, None)


def test_stats(command, one_of_each, blocking):
    blocking().create_queue("empty")
    heading, empty, q = command.lines("stats")
    assert heading.split() == shlex.split("QUEUE READY DELAYED TAKEN BURIED BLOCKED DONE KEPT OLDEST")
    assert empty.split() == ["empty", *["0"] * 7, "-"]
    assert q.split()[:8] == ["q", *["1"] * 4, "0", "0", "0"]
    (found,) = command.json("stats", "q")
    assert (found["queue"], found["total"], found["ready"], found["calls"]["put"]) == ("q", 4, 1, 4)
    assert "oldest_ready_age" in found
    assert [each["queue"] for each in command.json("stats")] == ["empty", "q"]


def test_health(command, queue, db):
    queue.put(1)
    queue.take(0)
    eventually(lambda: command("health").returncode == 0)  # once somebody ticks
    queue.put(2)
    heading, *checks = command.lines("health")
    assert heading.split() == ["CHECK", "STATUS", "VALUE", "DETAIL"]
    assert {line.split()[1] for line in checks} <= {"ok", "warn"}
    db.execute("UPDATE pgqueue.task SET created_at = now() - interval '1 day'")
    done = eventually(lambda: (found := command("health", "--json")).returncode and found)
    assert done.returncode == 1
    found = {check["name"]: check for check in map(json.loads, done.stdout.splitlines())}
    assert (found["oldest_ready"]["status"], found["oldest_ready"]["unit"]) == ("bad", "s")
    assert found["oldest_ready"]["value"] == pytest.approx(86400, abs=120)


@pytest.mark.parametrize("line", ["list", "stats", "peek-next", "kick", "pause", "resume", "truncate --yes"])
def test_a_queue_that_there_is_not_is_not_made(command, line):
    verb, *more = line.split()
    arguments = ["other", *(["5"] if verb == "pause" else []), *more]
    assert command.fails(1, verb, *arguments) == "there is no queue 'other'"
    assert command.lines("queues") == ["QUEUE  CREATED  OPTIONS"]


# --- what is wrong


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("create-queue q ttr", "'ttr' is not OPTION=VALUE"),
        ("create-queue q ttr=-1", "ttr must be over 0"),
        ("create-queue q colour=red", "a queue has no option 'colour'"),
        ("create-queue q type=heap", "a queue's type is one of fifo"),
        ("create-queue q temporary=true", "a queue that is temporary would end with this command"),
        ("alter q", "give at least one option to change"),
        ("pause q", "Missing argument 'SECONDS'"),
        ("pause q 0", "it must be over 0"),
        ("kick q -n 0", "0 is not in the range"),
        ("list q --state odd", "'odd' is not one of 'taken'"),
        ("list q -n x", "'x' is not a valid integer"),
        ("peek-next q --state taken", "'taken' is not one of"),
        ("stats --watch --interval 0", "it must be over 0"),
        ("delete", "Missing argument 'ID...'"),
    ],
)
def test_a_wrong_command_line_asks_nothing_of_a_server(line, said):
    assert said in failed(invoke(*shlex.split(line), PGQUEUE_DSN="postgresql://127.0.0.1:1/none"), 2)


@pytest.mark.parametrize("line", ["put q 1", "take q", "list q", "stats", "wait c", "kick q", "ack 1 --claim 1"])
def test_no_schema_and_no_server(empty_dsn, line):
    arguments = line.split()
    assert "run `pgqueue migrate up`" in failed(invoke("--dsn", empty_dsn, *arguments), 1)
    nowhere = "postgresql://app@127.0.0.1:1/any"
    assert failed(invoke("--dsn", nowhere, *arguments), 1).startswith("cannot connect to PostgreSQL (host=127.0.0.1")


@pytest.mark.slow
def test_tasks_are_listed_kicked_cancelled_deleted_and_released_by_a_filter(command, queue):
    for n in range(6):
        queue.put({"job": "odd" if n % 2 else "even", "args": {}})
    for n, task in enumerate(queue.take_many(6, timeout=0)):
        task.bury(error="KeyError: x" if n < 3 else "ValueError: y")
    listed = command.lines("list", "q", "--state", "buried", "--job", "odd", "--error", "ValueError", "--json")
    assert len(listed) == 2
    assert command.lines("list", "q", "--older", "1h", "--json") == []
    assert command.lines("kick-all", "q", "--job", "odd", "--error", "ValueError") == ["2"]
    assert command.lines("cancel-all", "q", "--state", "buried", "--job", "odd", "--yes") == ["1"]
    assert command.lines("delete-all", "q", "--state", "buried", "--error", "KeyError", "--yes") == ["2"]
    queue.take_many(2, timeout=0)
    assert command.lines("release-all", "q", "--job", "even", "--yes") == ["0"]
    assert command.lines("release-all", "q", "--job", "odd", "--yes") == ["2"]
    assert "'1w' is no duration, such as 90, 90s, 15m, 1h or 2d" in command.fails(2, "list", "q", "--older", "1w")


def test_tasks_are_chosen_by_key_lane_and_data(command, queue):
    for n in range(4):
        queue.put({"n": n, "args": {"to": "ada"}}, delay=60, key=f"key {n}", lane="a" if n < 3 else "b")
    found = command.json("list", "q", "--key", "key 2")
    assert [task["data"]["n"] for task in found] == [2]
    assert command.lines("kick-all", "q", "--state", "delayed", "--lane", "b", "--contains", '{"args": {}}') == ["1"]
    assert command.lines("delete-all", "q", "--state", "delayed", "--contains", '{"n": 1}', "--yes") == ["1"]
    assert "not JSON" in command.fails(2, "list", "q", "--contains", "{n}")


def test_tasks_are_put_again(command, queue):
    task = queue.put({"n": 1}).bury()
    assert command.lines("put-again", str(task.id)) == [f"{task.id} {task.id + 1}"]
    assert command.json("put-again", str(task.id)) == [{"id": task.id, "new_id": task.id + 2}]
    assert command.lines("put-again-all", "q", "--state", "buried", "--yes") == ["1"]
    assert queue.stats()["ready"] == 3
    assert "was not found" in command.fails(4, "put-again", "999")


async def test_who_did_what(command, client):
    await client.create_queue("mail")
    await client.create_queue("other")
    command.lines("pause", "mail", "60")
    with client.audit.acting("ada \x1b[2J"):
        await client.queue("other").drain()
    other, mail = command.json("audit")
    assert (other["verb"], other["queue"], other["actor"]) == ("drain", "other", "ada \x1b[2J")
    assert (mail["verb"], mail["queue"], mail["detail"]) == ("pause", "mail", "00:01:00")
    assert [line["queue"] for line in command.json("audit", "--queue", "mail")] == ["mail"]
    assert [line["queue"] for line in command.json("audit", "-n", "1")] == ["other"]
    head, first, _ = command.lines("audit")
    assert head.split() == ["AT", "ROLE", "ACTOR", "VERB", "QUEUE", "OBJECT", "TASKS", "DETAIL"]
    assert "ada \\x1b[2J" in first
