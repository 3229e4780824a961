"""The commands of exchanges, statuses, nodes, groups, results and changes, and those for a queue as a whole."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

pytestmark = pytest.mark.once


# --- queues


def test_a_drained_queue_refuses_puts_until_the_end_of_it(command):
    command.lines("create-queue", "q")
    assert command.lines("drain", "q") == []
    assert "q" in command.fails(1, "put", "q", "1")
    assert command.lines("drain", "q", "--off") == []
    assert command.lines("put", "q", "1") != []


def test_all_queues_are_drained_together(command):
    assert command.lines("drain", "--all") == []
    command.fails(1, "put", "other", "1")
    assert command.lines("drain", "--all", "--off") == []
    assert command.lines("put", "other", "1") != []
    assert "give a QUEUE or --all" in command.fails(2, "drain")
    assert "give a QUEUE or --all" in command.fails(2, "drain", "q", "--all")


def test_a_renamed_queue_keeps_its_tasks(command):
    command.lines("put", "old", "1")
    assert command.lines("rename-queue", "old", "new") == []
    assert command.lines("pop", "new") == ["1"]
    command.fails(1, "rename-queue", "missing", "other")
    command.lines("create-queue", "there")
    command.fails(1, "rename-queue", "new", "there")


def test_release_all_asks_and_gives_back_what_is_taken(command):
    command.lines("put", "q", "1", "2")
    command.lines("take", "q", "-n", "2")
    assert "--yes" in command.fails(2, "release-all", "q")
    assert command.lines("release-all", "q", "--yes") == ["2"]
    assert [task["state"] for task in command.json("list", "q")] == ["ready", "ready"]
    command.fails(1, "release-all", "missing", "--yes")


# --- tasks


def claimed(command, *data):
    command.lines("put", "q", *data)
    tasks = command.json("take", "q", "-n", len(data))
    return [task["id"] for task in tasks], tasks[0]["claim"]


def test_a_requeued_task_has_a_new_id_behind_the_others(command):
    (first, _), claim = claimed(command, "1", "2")
    (done,) = command.json("requeue", first, "--claim", claim)
    assert (done["old_id"], done["state"]) == (first, "ready")
    assert done["id"] > first
    assert "not found" in command.fails(4, "requeue", first, "--claim", claim)


def test_a_forwarded_task_is_in_the_other_queue_with_its_data(command):
    (first, second), claim = claimed(command, '{"n": 1}', "2")
    assert command.lines("forward", first, "next", "--claim", claim) == [f"{first} done"]
    assert command.lines("forward", second, "next", '"other"', "--claim", claim) == [f"{second} done"]
    assert command.lines("pop", "next", "-n", 2) == ['{"n": 1}', '"other"']
    command.fails(4, "forward", first, "next", "--claim", claim)


@pytest.mark.slow
def test_results_and_progress_are_seen_by_others(command):
    (first, second), claim = claimed(command, "1", "2")
    assert command.lines("progress", first, "50", "--claim", claim) == []
    (seen,) = command.json("outcome", first)
    assert (seen["state"], seen["progress"]) == ("taken", 50)
    assert command.finds_nothing("result", first, "--timeout", 0)
    assert command.lines("finish", first, '{"path": "/7.png"}', "--claim", claim) == [f"{first} done"]
    assert command.lines("result", first, "--timeout", 30) == ['{"path": "/7.png"}']
    assert command.json("result", first) == [{"id": first, "result": {"path": "/7.png"}}]
    assert command.lines("follow", first) == [f'{first} done {{"path": "/7.png"}}']
    assert command.lines("fail", second, "--error", "no such page") == [f"{second} buried"]
    assert "no such page" in command.fails(4, "result", second)
    assert command.lines("follow", second) == [f"{second} failed no such page"]
    assert [one["state"] for one in command.json("outcome", first, second)] == ["done", "failed"]
    command.fails(4, "progress", first, "60", "--claim", claim)


def test_follow_ends_with_code_3_when_the_time_is_over(command):
    command.lines("put", "q", "1")
    done = command("follow", 1, "--timeout", 0)
    assert (done.returncode, done.stdout, done.stderr) == (3, "1 ready\n", "")


def test_results_of_predecessors_are_listed(command, blocking):
    client = blocking()
    before = client.queue("q").put("first")
    client.queue("then").put("second", after=[before])
    (task,) = command.json("take", "q")
    command.lines("finish", before.id, "42", "--claim", task["claim"])
    (after,) = command.json("take", "then", "--timeout", 30)
    (found,) = command.json("results", after["id"], "--claim", after["claim"])
    assert (found["id"], found["state"], found["result"]) == (before.id, "done", 42)


def test_the_history_of_a_task_is_listed(command):
    (id,), claim = claimed(command, "1")
    command.lines("release", id, "--claim", claim)
    (seen,) = command.json("task-stats", id)
    assert (seen["id"], seen["releases"], seen["buries"]) == (id, 1, 0)
    assert command.lines("task-stats", id)[0].split()[:3] == ["ID", "QUEUE", "STATE"]
    command.fails(4, "task-stats", 999)


def test_changes_are_printed_as_they_come(command, blocking):
    client = blocking()
    client.create_queue("q")
    with repeatedly(lambda: client.queue("q").put(1)):
        (change,) = command.json("changes", "q", "-n", 1, "--timeout", 30)
    assert (change["op"], change["queue"]) == ("put", "q")
    assert change["task_id"] > 0
    assert command.finds_nothing("changes", "q", "--timeout", 0)
    command.fails(1, "changes", "missing")


# --- exchanges


def test_what_is_published_goes_to_the_queues_that_are_bound(command):
    command.lines("create-exchange", "events", "--type", "topic")
    command.lines("create-queue", "q")
    assert command.lines("publish", "events", "order.paid", "7") == ["0"]
    assert "no queue is bound" in command.fails(1, "publish", "events", "order.paid", "7", "--mandatory")
    assert command.lines("bind", "q", "events", "order.#") == []
    assert command.lines("publish", "events", "order.paid", "7", "--priority", "-1") == ["1"]
    assert command.lines("pop", "q") == ["7"]
    assert command.lines("unbind", "q", "events", "order.#") == []
    assert command.finds_nothing("unbind", "q", "events", "order.#")
    assert "--yes" in command.fails(2, "delete-exchange", "events")
    assert command.lines("delete-exchange", "events", "--yes") == []
    command.fails(1, "bind", "q", "events")
    command.fails(1, "delete-exchange", "events", "--yes")
    assert "not both" in command.fails(2, "publish", "", "q", "1", "--delay", 1, "--at", "2030-01-31T08:00:00Z")


def test_the_deaths_of_a_dead_letter_are_listed(command):
    command.lines("create-queue", "q", 'dead_letter=""', "dead_letter_key=dead")
    command.lines("create-queue", "dead", "--if-not-exists")
    (id,), claim = claimed(command, "1")
    command.lines("bury", id, "--claim", claim)
    (letter,) = command.json("list", "dead")
    (death,) = command.json("deaths", letter["id"])
    assert (death["queue"], death["reason"], death["count"]) == ("q", "rejected", 1)


# --- statuses


def test_a_status_is_set_waited_for_and_deleted(command, blocking):
    client = blocking()
    assert command.finds_nothing("status", "get", "page")
    assert command.finds_nothing("status", "wait", "page", "--timeout", 0)
    assert command.lines("status", "set", "page", '"queued"', "--ttl", 3600) == []
    assert command.lines("status", "get", "page") == ['"queued"']
    assert command.finds_nothing("status", "wait", "page", '"done"', "--timeout", 0)
    with repeatedly(lambda: client.statuses.set("page", "done")):
        assert command.json("status", "wait", "page", '"done"', "-t", 30) == [{"key": "page", "value": "done"}]
    assert command.lines("status", "delete", "page") == []
    assert command.finds_nothing("status", "delete", "page")
    assert "cannot be null" in command.fails(2, "status", "set", "page", "null")
    assert "not JSON" in command.fails(2, "status", "set", "page", "{")


# --- nodes and groups


def test_nodes_are_created_set_listed_and_deleted(command):
    assert command.lines("nodes", "create", "/app", '{"limit": 10}') == ["/app"]
    assert command.lines("nodes", "set", "/app", "20", "--version", 0) == ["1"]
    command.fails(1, "nodes", "set", "/app", "30", "--version", 0)
    assert command.lines("nodes", "get", "/app") == ["20"]
    (node,) = command.json("nodes", "get", "/app")
    assert (node["path"], node["version"], node["ephemeral"]) == ("/app", 1, False)
    assert command.lines("nodes", "create", "/app/n-", "--sequential") == ["/app/n-0000000000"]
    assert command.json("nodes", "list", "/app") == [{"name": "n-0000000000"}]
    command.fails(1, "nodes", "delete", "/app", "--yes")
    assert "--yes" in command.fails(2, "nodes", "delete", "/app/n-0000000000")
    assert command.lines("nodes", "delete", "/app/n-0000000000", "--yes") == []
    assert command.lines("nodes", "exists", "/app") == []
    assert command.finds_nothing("nodes", "exists", "/app/n-0000000000")
    command.fails(1, "nodes", "get", "/app/n-0000000000")


def test_events_of_a_node_are_printed_with_the_state_after_them(command, blocking):
    client = blocking()
    assert command.finds_nothing("nodes", "watch", "/app", "--timeout", 0)
    client.nodes.create("/app")
    with repeatedly(lambda: client.nodes.set("/app", 1)):
        (event,) = command.json("nodes", "watch", "/app", "-n", 1, "-t", 30)
    assert event == {"kind": "changed", "path": "/app", "data": 1}
    with repeatedly(lambda: client.nodes.create("/app/x-", sequential=True)):
        (line,) = command.lines("nodes", "watch", "/app", "--children", "-n", 1, "-t", 30)
    assert line.startswith('children /app ["x-')


def test_members_of_a_group_are_listed(command, blocking):
    client = blocking()
    assert command.json("group", "members", "g") == []
    with client.groups.join("g", {"port": 1}, "ada"):
        (member,) = command.json("group", "members", "g")
        assert (member["name"], member["data"]) == ("ada", {"port": 1})
        assert command.lines("group", "watch", "g", "-n", 1) == ["ada"]


# --- a second client


@contextmanager
def repeatedly(act: Callable[[], object]) -> Iterator[None]:
    """Calls the function again and again during the block, which waits for what it does."""
    over = threading.Event()

    def run() -> None:
        while not over.wait(0.05):
            act()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
