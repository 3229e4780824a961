"""`pgqueue take` in its three ways, and the commands that settle what it took."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import threading

import pytest
from commands import failed, invoke, started
from eventually import eventually

from pgqueue._calls.call import Call

pytestmark = pytest.mark.once


@pytest.fixture
def queue(blocking):
    return blocking().queue("q")


def state(command, id):
    return command.json("peek", id)[0]["state"]


# --- a claim


def test_id_claim_and_data_are_a_line(command, queue):
    queue.put({"to": "Ada Lovelace"})
    (line,) = command.lines("take", "q")
    id, claim, data = line.split(maxsplit=2)
    assert (id, json.loads(data)) == ("1", {"to": "Ada Lovelace"})
    assert queue.messages.get(claim).messages[0].id == 1
    assert state(command, 1) == "taken"
    assert command.finds_nothing("take", "q", "--timeout", "0")
    assert command.lines("ack", "1", "--claim", claim) == ["1 done"]
    assert "was not found" in command.fails(4, "ack", "1", "--claim", claim)


def test_json_has_the_claim_as_a_string(command, queue):
    queue.put_many([1, 2, 3])
    tasks = command.json("take", "q", "-n", "2", "--ttr", "600")
    assert [(task["id"], task["data"], task["state"]) for task in tasks] == [(1, 1, "taken"), (2, 2, "taken")]
    (claim,) = {task["claim"] for task in tasks}
    assert isinstance(claim, str)
    assert command.json("ack", "1", "2", "--claim", claim) == [{"id": 1, "state": "done"}, {"id": 2, "state": "done"}]
    assert state(command, 3) == "ready"


def test_it_waits_for_a_task(command, blocking):
    producer = blocking()
    with waiting_takers_put(producer, "late"):
        (line,) = command.lines("take", "q", "--timeout", "30")
    assert line.endswith(' "late"')
    assert command.finds_nothing("take", "q", "--timeout", "0.05")


def waiting_takers_put(client, data):
    """Puts once somebody waits for the queue, so that the wait is what is served."""

    class Putting:
        def __enter__(self):
            self._thread = threading.Thread(target=self._put)
            self._thread.start()

        def _put(self):
            eventually(lambda: client.shell.run(WAITERS))
            client.queue("q").put(data)

        def __exit__(self, *exception):
            self._thread.join()

    return Putting()


WAITERS = Call(
    "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND granted AND mode = 'ShareLock' AND database ="
    " (SELECT oid FROM pg_database WHERE datname = current_database())",
    (),
    lambda rows: rows[0][0],
)


def test_a_claim_ends_by_itself(command, queue):
    queue.put(1)
    command.lines("take", "q", "--ttr", "0.05")
    assert queue.take(10).attempts == 1


def test_release_and_bury(command, queue):
    queue.put_many([1, 2, 3])
    claim = command.json("take", "q", "-n", "3")[0]["claim"]
    assert command.lines("release", "1", "--claim", claim) == ["1 ready"]
    options = ("--claim", claim, "--delay", "60", "--priority", "-1", "--error", "no luck")
    assert command.lines("release", "2", *options) == ["2 delayed"]
    assert command.lines("bury", "3", "--claim", claim, "--error", "hopeless", "--priority", "7") == ["3 buried"]
    one, two, three = command.json("peek", "1", "2", "3")
    assert (one["attempts"], one["error"]) == (0, None)
    assert (two["priority"], two["attempts"], two["error"]) == (-1, 1, "no luck")
    assert (three["priority"], three["error"]) == (7, "hopeless")
    assert command.lines("bury", "1") == ["1 buried"]  # whoever has it


def test_touch_is_for_the_whole_claim(command, queue):
    queue.put_many([1, 2, 3])
    claim = command.json("take", "q", "-n", "2", "--ttr", "60")[0]["claim"]
    before = command.json("peek", "2")[0]["deadline"]
    assert command.lines("touch", "1", "--claim", claim, "--ttr", "6000") == ["1 taken"]
    assert command.json("peek", "2")[0]["deadline"] > before
    assert "task 3 is not held by claim" in command.fails(4, "touch", "3", "--claim", claim)
    assert "there is no claim 7" in command.fails(4, "touch", "1", "--claim", "7")


def test_one_that_is_lost_does_not_keep_the_others(command, queue):
    queue.put_many([1, 2])
    claim = command.json("take", "q", "-n", "2")[0]["claim"]
    queue.delete(1)
    done = command("ack", "1", "2", "--claim", claim)
    assert (done.returncode, done.stdout) == (4, "2 done\n")
    assert done.stderr.startswith("Error: task 1 was not found")


def test_who_is_too_late_changes_nothing(command, queue):
    queue.put(1)
    claim = command.json("take", "q", "--ttr", "0.05")[0]["claim"]
    queue.take(10)
    for verb in ("ack", "release", "bury"):
        assert "task 1 is taken by" in command.fails(4, verb, "1", "--claim", claim)
    assert "there is no claim" in command.fails(4, "touch", "1", "--claim", claim)
    assert state(command, 1) == "taken"


def test_ack_at_once(command, queue):
    queue.put_many(["one", {"two": 2}, 3])
    assert command.lines("take", "q", "--ack", "-n", "2") == ['"one"', '{"two": 2}']
    assert command.json("take", "q", "--ack")[0]["id"] == 3
    assert command.finds_nothing("take", "q", "--ack", "-t", "0")
    assert queue.stats()["total"] == 0


# --- a command


@pytest.fixture
def program(tmp_path):
    """Makes a command of Python lines, and says what it printed."""

    def make(*lines):
        path = tmp_path / "program.py"
        path.write_text("import json, os, sys, time, signal\n" + "\n".join(lines))
        return [sys.executable, "-S", str(path)]

    return make


def test_the_command_gets_the_task_and_its_success_is_an_ack(command, queue, program, tmp_path):
    queue.put_many([{"to": "ada"}, {"to": "bob"}])
    out = tmp_path / "out"
    names = "[os.environ['PGQUEUE_TASK_' + name] for name in ('ID', 'QUEUE', 'ATTEMPTS')]"
    write = program(f"print(json.load(sys.stdin), {names}, sys.argv[1:], file=open({str(out)!r}, 'a'))")
    assert command.lines("take", "q", "-n", "5", "-t", "0", "--", *write, "--fast", "-x") == []
    assert out.read_text().splitlines() == [
        "{'to': 'ada'} ['1', 'q', '0'] ['--fast', '-x']",
        "{'to': 'bob'} ['2', 'q', '0'] ['--fast', '-x']",
    ]
    assert queue.stats()["total"] == 0
    assert command.finds_nothing("take", "q", "-t", "0", "--", *write)


def test_data_that_the_command_does_not_read(command, queue):
    queue.put("x" * 500_000)  # more than a pipe holds
    assert command.lines("take", "q", "--", "true") == []
    assert queue.stats()["done"] == 1


def test_its_failure_is_told_and_tried_again(command, queue):
    queue.put_many([1, 2])
    done = command("take", "q", "-n", "2", "-t", "0", "--retry-delay", "1e9", "--", "sh", "-c", "exit 3")
    assert (done.returncode, done.stdout) == (1, "")
    first, second = done.stderr.splitlines()
    assert first.startswith("task 1: sh ended with exit code 3; it is again in ")
    assert second.startswith("task 2: ")
    seen = command.json("peek", "1")[0]
    assert (seen["state"], seen["attempts"], seen["error"]) == ("delayed", 1, "sh ended with exit code 3")


def test_the_last_attempt_buries(command, queue):
    queue.put(1)
    done = command("take", "q", "--max-attempts", "1", "--", "sh", "-c", "kill -9 $$")
    assert done.returncode == 1
    assert done.stderr == "task 1: sh was killed by signal 9; after 1 attempts it is buried\n"
    assert state(command, 1) == "buried"


@pytest.mark.slow
def test_a_command_that_is_too_late(command, queue, dsn):
    queue.put(1)
    delete = [sys.executable, "-c", f"import pgqueue; pgqueue.Client({dsn!r}).queue('q').delete(1)"]
    assert "task 1 was not found" in command.fails(4, "take", "q", "--", *delete)


def test_a_command_that_cannot_be_run(command, queue, tmp_path):
    queue.put(1)
    assert "there is no program 'no-such-program'" in command.fails(2, "take", "q", "--", "no-such-program")
    broken = tmp_path / "broken"
    broken.write_text("#!/no/such/interpreter\n")
    broken.chmod(0o700)
    assert "cannot be run" in command.fails(1, "take", "q", "--", str(broken))
    assert (state(command, 1), command.json("peek", "1")[0]["attempts"]) == ("ready", 0)


@pytest.mark.slow
@pytest.mark.parametrize(("sent", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_ends_the_command_and_gives_the_task_back(dsn, queue, program, tmp_path, sent, code):
    queue.put(1)
    ready = tmp_path / "ready"
    sleep = program(f"open({str(ready)!r}, 'w').close()", "time.sleep(60)")
    with started("--dsn", dsn, "take", "q", "--", *sleep, stderr=subprocess.PIPE, text=True) as process:
        eventually(ready.exists)
        process.send_signal(sent)
        _, said = process.communicate(timeout=30)
    assert (process.returncode, said) == (code, "")
    task = queue.peek(1)
    assert (task.state, task.attempts) == ("ready", 0)


@pytest.mark.slow
def test_a_command_that_finishes_when_told_to_stop_has_done_its_task(dsn, queue, program, tmp_path):
    queue.put(1)
    ready = tmp_path / "ready"
    finish = program(
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))", f"open({str(ready)!r}, 'w').close()", "time.sleep(60)"
    )
    with started("--dsn", dsn, "take", "q", "--", *finish) as process:
        eventually(ready.exists)
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 143
    assert queue.stats()["done"] == 1


@pytest.mark.slow
def test_a_taker_that_is_killed_loses_the_task(dsn, queue, program, tmp_path):
    queue.put(1)
    ready = tmp_path / "ready"
    wait = program(f"open({str(ready)!r}, 'w').write(str(os.getpid()))", "sys.stdin.read()", "time.sleep(60)")
    with started("--dsn", dsn, "take", "q", "--", *wait) as process:
        pid = int(eventually(lambda: ready.exists() and ready.read_text()))
        process.kill()
        try:
            assert queue.take(30).attempts == 1
        finally:
            os.kill(pid, signal.SIGKILL)


# --- what is wrong


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("take", "Missing argument 'QUEUE'"),
        ("take q -n 0", "0 is not in the range"),
        ("take q -t nan", "it must be 0 to 1e+09 seconds, not nan"),
        ("take q --ttr 0", "it must be over 0"),
        ("take q --ack --ttr 5", "--ttr cannot be used with --ack, which acks at once"),
        ("take q --json -- true", "--ttr, --ack and --json cannot be used with a COMMAND"),
        ("take q --max-attempts 3", "--max-attempts and --retry-delay need a COMMAND"),
        ("ack 1", "Missing option '--claim'"),
        ("ack --claim 1", "Missing argument 'ID...'"),
        ("ack x --claim 1", "a task id is an int or a string of digits, not 'x'"),
        ("ack 0 --claim 1", "a task id is from 1"),
        ("ack 1 --claim x", "a claim is named by its id"),
        ("release 1 --claim 1 --delay -1", "it must be 0 to 1e+09 seconds"),
        ("bury 99999999999999999999", "a task id is"),
    ],
)
def test_a_wrong_command_line_asks_nothing_of_a_server(line, said):
    assert said in failed(invoke(*shlex.split(line), PGQUEUE_DSN="postgresql://127.0.0.1:1/none"), 2)


# --- a pop


@pytest.mark.slow
def test_a_pop_prints_and_acks(command, queue, blocking):
    queue.put_many([{"n": 1}, {"n": 2}])
    blocking().queue("r").put("r", priority=-1)
    assert command.lines("pop", "q", "r", "-n", "2") == ['"r"', '{"n": 1}']
    (task,) = command.json("pop", "q", "--timeout", "5")
    assert (task["data"], task["queue"], task["state"]) == ({"n": 2}, "q", "done")
    assert command.finds_nothing("pop", "q", "r")
    assert command.finds_nothing("pop", "q", "--timeout", "0.1")
    assert queue.stats()["total"] == 0


def test_a_pop_waits_as_long_as_it_is_told(command, queue):
    threading.Timer(0.3, queue.put, ["late"]).start()
    assert command.lines("pop", "q", "--timeout", "30") == ['"late"']
