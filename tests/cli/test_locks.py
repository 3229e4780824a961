"""`pgqueue lock` and `elect`: a command that runs while a lock is held, and what ends it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

import pytest
from commands import run, started
from eventually import eventually

from pgqueue._calls.call import Call
from pgqueue.cli.holding import Held

pytestmark = pytest.mark.once

#: Writes its fence and its process id, then waits for a signal; SIGTERM makes it end with 7, SIGINT with 8.
WAITING = """
import os, signal, sys
signal.signal(signal.SIGTERM, lambda *_: (open(sys.argv[1], "a").write("term\\n"), os._exit(7)))
signal.signal(signal.SIGINT, lambda *_: os._exit(8))
with open(sys.argv[1], "a") as file:
    file.write(f"{os.environ['PGQUEUE_FENCE']} {os.getpid()}\\n")
while True:
    signal.pause()
"""


@pytest.fixture
def client(blocking):
    return blocking()


@pytest.fixture
def written(tmp_path):
    """The file of a waiting command."""
    return tmp_path / "written"


def lines(written):
    return written.read_text().splitlines() if written.exists() else []


def waiting(verb, dsn, written, *options, **popen):
    command = [sys.executable, "-c", WAITING, written]
    return started("--dsn", dsn, verb, "nightly", *options, "--", *command, stderr=subprocess.PIPE, text=True, **popen)


def held(written):
    """The process id of the waiting command, once it runs."""
    return int(eventually(lambda: lines(written))[-1].split()[1])


def gone(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def end_connections(client):
    """End the connections of the others, which hold the locks."""
    text = (
        "SELECT pg_catalog.count(pg_catalog.pg_terminate_backend(l.pid)) FROM pg_catalog.pg_locks l"
        " WHERE l.locktype = 'advisory' AND l.pid <> pg_catalog.pg_backend_pid()"
        " AND l.database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = pg_catalog.current_database())"
    )
    client.shell.run(Call(text, (), lambda rows: rows[0][0]))


@pytest.mark.slow
def test_the_exit_code_is_that_of_the_command(dsn):
    for verb in ("lock", "elect"):
        done = run("--dsn", dsn, verb, "nightly", "--", "sh", "-c", 'echo "$PGQUEUE_FENCE"; exit 5')
        assert (done.returncode, done.stderr) == (5, "")
        assert int(done.stdout) > 0


@pytest.mark.slow
def test_a_signal_that_kills_the_command_is_in_the_exit_code(dsn):
    done = run("--dsn", dsn, "lock", "nightly", "--", "sh", "-c", "kill -9 $$")
    assert (done.returncode, done.stderr) == (137, "")


def test_a_lock_of_another_process_ends_it_with_code_3(command, client):
    with client.lock("nightly"):
        assert command.finds_nothing("lock", "nightly", "--timeout", 0, "--", "true")
        assert command.finds_nothing("lock", "nightly", "--timeout", 0, "--shared", "--", "true")
    with client.lock("nightly", shared=True):
        assert command.lines("lock", "nightly", "--timeout", 30, "--shared", "--", "true") == []


def test_a_missing_program_is_named_before_the_lock(command):
    assert "no program 'nothing-like-it'" in command.fails(2, "lock", "nightly", "--", "nothing-like-it")
    assert "no program 'nothing-like-it'" in command.fails(2, "elect", "nightly", "--", "nothing-like-it")
    assert "COMMAND" in command.fails(2, "lock", "nightly")


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["lock", "elect"])
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 7), (signal.SIGINT, 8)])
def test_a_signal_is_passed_on_and_the_lock_is_held_until_the_end(dsn, client, written, verb, number, code):
    with waiting(verb, dsn, written, start_new_session=True) as process:  # no terminal gives it the keys
        held(written)
        assert client.try_lock("nightly") is None
        process.send_signal(number)
        assert process.wait(30) == code
    with client.lock("nightly", timeout=30):
        pass


@pytest.mark.slow
def test_a_killed_pgqueue_frees_the_lock_and_ends_the_command(dsn, client, written):
    with waiting("lock", dsn, written) as process:
        pid = held(written)
        process.kill()
        with client.lock("nightly", timeout=30):
            pass
        if sys.platform == "linux":
            eventually(lambda: gone(pid))
            assert lines(written)[1:] == ["term"]
        else:
            os.kill(pid, signal.SIGKILL)


@pytest.mark.slow
def test_a_lost_connection_ends_the_command_and_is_code_4(dsn, client, written):
    with waiting("lock", dsn, written) as process:
        pid = held(written)
        end_connections(client)
        _, said = process.communicate(timeout=30)
    assert process.returncode == 4
    assert said.startswith("Error: the lock nightly is lost; ")
    assert lines(written)[1:] == ["term"]
    assert gone(pid)


@pytest.mark.slow
def test_a_command_that_goes_on_without_the_lock_is_killed(dsn, client, written):
    stubborn = f'trap "" TERM; echo "1 $$" > {written}; while :; do sleep 0.05; done'
    with started("--dsn", dsn, "lock", "nightly", "--kill-after", "0.1", "--", "sh", "-c", stubborn) as process:
        pid = held(written)
        end_connections(client)
        assert process.wait(30) == 4
        assert gone(pid)


@pytest.mark.slow
def test_a_deposed_leader_runs_its_command_again_when_it_is_elected_again(dsn, client, written):
    with waiting("elect", dsn, written) as process:
        held(written)
        end_connections(client)
        eventually(lambda: len(lines(written)) == 3)
        (first, told, second) = lines(written)
        assert told == "term"
        assert int(second.split()[0]) > int(first.split()[0])
        process.terminate()
        assert process.wait(30) == 7


@pytest.mark.slow
def test_a_waiting_lock_ends_at_a_signal_and_leaves_the_line(dsn, client, written):
    with client.lock("nightly") as lock:
        with waiting("lock", dsn, written) as process:
            waiters = Call("SELECT pg_catalog.sum(waiters)::int FROM pgqueue.locks", (), lambda rows: rows[0][0])
            eventually(lambda: client.shell.run(waiters))
            process.send_signal(signal.SIGINT)
            assert process.wait(30) == 130
            assert lines(written) == []
        lock.release()
    with client.lock("nightly", timeout=30):
        pass


def test_a_lock_that_is_lost_before_its_command_starts_is_said(capsys):
    held = Held(["true"], 10.0, "the lock x")
    held.lose()
    assert held.run({}) == 128 + signal.SIGTERM
    assert capsys.readouterr().err == "Error: the lock x is lost; true was not started\n"


UNTIL_TOLD = "trap : TERM; touch began; while [ ! -e told ]; do sleep 0.01; done"


def test_a_signal_to_end_counts_while_the_command_ends_for_a_lost_lock(tmp_path):
    """`elect` would else wait for its next election, and outlive its service's stop."""
    held = Held(["sh", "-c", f"cd {tmp_path}; {UNTIL_TOLD}"], 30.0, "the leadership x")

    def lose_and_end():
        eventually((tmp_path / "began").exists)  # sooner, SIGTERM would end the command, and then this process
        held.lose()
        os.kill(os.getpid(), signal.SIGTERM)
        eventually(lambda: held.told)
        (tmp_path / "told").touch()

    thread = threading.Thread(target=lose_and_end)
    thread.start()
    held.run({})
    thread.join()
    assert (held.lost, held.told) == (True, True)
