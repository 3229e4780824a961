"""`pgqueue top`: the overview in a terminal, in the words of the dashboard, also while the database is away."""

from __future__ import annotations

import re

import pytest
from commands import failed, invoke
from eventually import eventually
from outages import away
from terminals import FIRST_SCREEN, OTHER_SCREEN

from pgqueue._calls.health import Check
from pgqueue.cli import top
from pgqueue.monitors import overview
from pgqueue.monitors.reasons import FLOWS
from pgqueue.monitors.words import CHECKS, GRADES, REASONS, Words

pytestmark = pytest.mark.once


def test_a_database_that_is_well_says_so(command, blocking):
    client = blocking()
    client.create_queue("mail")
    lines = command.lines("top", "--once")
    assert lines[0] == "Well  All checks pass."
    head, row = lines[-2:]
    assert head.split() == [
        *("QUEUE", "READY", "TAKEN", "DELAYED", "BLOCKED", "BURIED", "KEPT"),
        *("OLDEST", "PUT/s", "DONE/s", "EMPTY", "IN"),
    ]
    assert row.split()[:7] == ["mail", *"000000"]


def test_what_is_wrong_comes_in_words_with_its_remedy(command, blocking, db):
    client = blocking()
    client.queue("mail").put_many([1, 2])
    client.queue("mail").pause(600)
    client.create_queue("other")
    db.execute("UPDATE pgqueue.task SET created_at = now() - interval '2 h'")
    text = "\n".join(command.lines("top", "--once"))
    assert f"{GRADES['warn']}  {CHECKS['paused'].said}\n      1 queue: mail\n      {CHECKS['paused'].remedy}\n" in text
    assert re.search(
        rf"Queues that stand still:\n  mail: {re.escape(REASONS['paused'].said[:-1])}: nothing is taken", text
    )
    assert REASONS["paused"].remedy in text
    assert re.search(r"\nmail \(paused\) +2 +0 +0 +0 +0 +0", text)


def test_a_queue_with_a_limit_and_no_worker_and_a_flow(command, blocking):
    client = blocking()
    client.create_queue("mail")
    client.limits.set("mail", concurrency=2)
    client.queue("mail").put(1)
    client.queue("flows").put(1, after=[client.queue("mail").put(2)])
    text = " ".join(" ".join(command.lines("top", "--once")).split())
    assert f"mail: {REASONS['no taker'].said[:-1]}: " in text
    assert f"flows: {FLOWS.said[:-1]}: for other tasks. " in text


@pytest.mark.slow
def test_a_narrow_terminal_breaks_its_lines_between_words(terminal, command, blocking, db):
    queue = blocking().queue("thumbnails-of-uploaded-pictures")
    queue.put(1)
    db.execute("UPDATE pgqueue.task SET created_at = now() - interval '2 h'")
    words = " ".join(command.lines("top", "--once")).split()
    shown = terminal("top", "--once", TERM="xterm", COLUMNS="60")
    assert shown.end() == 0
    eventually(lambda: shown.shows("`pgqueue stats --json` shows all"))
    lines = shown.seen.replace("\r", "").splitlines()
    assert max(map(len, lines)) <= 60
    said = lines[: next(n for n, line in enumerate(lines) if line.startswith("QUEUE"))]
    assert all(word in words for word in " ".join(said).split() if word[0].isalpha())  # no part of a word
    assert [line for line in said if line.startswith("  thumbnails-of-uploaded-pictures: ")]


def test_only_queues_that_match(command, blocking):
    client = blocking()
    for name in ("mail", "mail.bulk", "other"):
        client.create_queue(name)
    shown = "\n".join(command.lines("top", "--once", "--match", "mail"))
    assert "mail.bulk" in shown
    assert "other" not in shown
    assert "There is no queue." in command.lines("top", "--once", "-m", "%")


def test_of_many_queues_there_is_a_page(command, db, monkeypatch):
    monkeypatch.setattr(top, "PAGE", 3)
    monkeypatch.setattr(overview, "PAGE", 3)
    db.execute("SELECT pgqueue.create_queue('q' || n) FROM generate_series(1, 5) n")
    lines = command.lines("top", "--once")
    assert [line.split()[0] for line in lines[-4:-1]] == ["q1", "q2", "q3"]
    assert lines[-1] == "There are more than 3 queues: --match shows those of a name."


def test_names_are_not_obeyed(command, blocking):
    blocking().queue("a\x1b[2J\u202eb").put(1)
    blocking().queue("a\x1b[2J\u202eb").pause(60)
    text = "\n".join(command.lines("top", "--once"))
    assert "a\\x1b[2J\\u202eb" in text
    assert "\x1b" not in text
    assert "\u202e" not in text


def test_a_check_without_words_is_shown_by_its_name():
    check = Check("new", "bad", float("inf"), "s", "why")
    assert list(top._of_finding(check, Words("new", ""), {})) == ["Bad  new", "      for ever: why"]


def test_a_database_that_is_absent_ends_it_at_once():
    assert "Connection refused" in failed(invoke("--dsn", "postgresql://127.0.0.1:1/x", "top"), 1)


@pytest.mark.slow
def test_it_redraws_in_place_and_ctrl_c_ends_it(terminal, blocking):
    queue = blocking().queue("mail")
    queue.put(1)
    shown = terminal("top", "--interval", "0.05", TERM="xterm")
    eventually(lambda: shown.shows(r"QUEUE +READY.*mail +1 "))
    queue.put_many([2, 3])
    eventually(lambda: shown.shows(r"mail +3 "))
    shown.interrupt()
    assert shown.end() == 130
    eventually(lambda: shown.shows(re.escape(FIRST_SCREEN) + r".*QUEUE.*mail.*3.*\n$"))
    assert shown.seen.count(OTHER_SCREEN) == shown.seen.count(FIRST_SCREEN) == 1
    assert "Traceback" not in shown.seen


@pytest.mark.slow
def test_a_database_that_goes_and_comes_back(terminal, blocking, pg_server, dsn):
    client = blocking()
    client.queue("mail").put(1)
    shown = terminal("top", "--interval", "0.05", TERM="dumb")
    eventually(lambda: shown.shows("mail +1 "))
    with away(pg_server, dsn):
        eventually(lambda: shown.shows("The database does not answer: .*This is what was seen last.*mail +1 "))
    client.queue("mail").put(2)
    eventually(lambda: shown.shows("does not answer.*mail +2 "))
    shown.interrupt()
    assert shown.end() == 130
    assert "Traceback" not in shown.seen
    assert "\x1b" not in shown.seen
