"""`pgqueue stats --watch`, completion, Ctrl-C, and output that goes wrong: what needs a terminal or a process."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import cast

import pytest
from click.shell_completion import BashComplete
from commands import environment, invoke, started
from eventually import eventually
from terminals import FIRST_SCREEN, OTHER_SCREEN

from pgqueue import cli
from pgqueue._calls import stats as counting
from pgqueue._calls.call import Call
from pgqueue._engine.steps import Wait
from pgqueue._sync.shell import Shell
from pgqueue.cli import names, stats
from pgqueue.terminal import screens

pytestmark = pytest.mark.once


# --- the live view


def test_rates_are_of_the_time_between_two_looks(command, blocking, monkeypatch):
    queue, naps = blocking().queue("q"), []

    def sleep(seconds):
        naps.append(seconds)
        if len(naps) == 2:
            raise KeyboardInterrupt
        queue.put_many([1, 2, 3])

    queue.put(0)
    monkeypatch.setattr(stats.time, "sleep", sleep)
    monkeypatch.setattr(stats.time, "monotonic", lambda: 100.0 + 2 * len(naps))
    done = command("stats", "--watch", "--json")
    assert (done.returncode, done.stderr) == (130, "")
    first, second = map(json.loads, done.stdout.splitlines())
    assert (first["ready"], second["ready"]) == (1, 4)
    assert "per_second" not in first
    assert (second["per_second"]["put"], second["per_second"]["take"]) == (1.5, 0.0)
    assert naps[0] == 2.0  # as --interval says, whatever the look took


def test_no_rate_where_the_counters_began_anew():
    def look(puts, before=None):
        calls = dict.fromkeys(stats.VERBS, 0) | {"put": puts}
        return stats.Look({"q": cast(counting.Stats, {"calls": calls})}, float(puts), before)

    assert look(5, look(3)).rates("q")["put"] == 1.0
    assert look(3, look(5)).rates("q")["put"] is None
    assert look(3).rates("q")["put"] is None


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0s"), (59, "59s"), (3601, "1h 0m"), (90_000, "1d 1h"), (125, "2m 5s")]
)
def test_an_age(seconds, text):
    assert stats._age(seconds) == text


def fitting(lines, rows, width):
    return [row.plain for row in screens.fitting(lines, rows, width)]


def test_a_screen_is_not_overfilled():
    lines = [f"queue number {n}" for n in range(20)]
    assert fitting(lines, 4, 40) == ["queue number 0", "queue number 1", "queue number 2", "and 17 more"]
    assert fitting(lines[:4], 4, 40) == lines[:4]


def test_lines_that_are_too_wide_do_not_push_the_first_ones_off_the_screen():
    """Rich wraps them: 20 lines were 40 rows, of which a terminal shows the last."""
    lines = ["the database does not answer", "", *(f"queue number {n} and what holds it up" for n in range(20))]
    assert [row.rstrip() for row in fitting(lines, 6, 20)] == [
        *("the database does", "not answer", "", "queue number 0 and", "what holds it up"),
        "and 38 more",
    ]


@pytest.mark.slow
def test_watch_redraws_in_place_and_ends_with_the_last_look(terminal, blocking):
    queue = blocking().queue("mail")
    queue.put(1)
    watch = terminal("stats", "--watch", "--interval", "0.05", TERM="xterm")
    eventually(lambda: watch.shows(r"QUEUE +READY.*PUT/s.*mail +1 "))
    queue.put_many([2, 3])
    eventually(lambda: watch.shows(r"mail +3 "))
    watch.interrupt()
    assert watch.end() == 130
    eventually(lambda: watch.shows(re.escape(FIRST_SCREEN) + r".*QUEUE.*mail.*3.*\n$"))
    assert watch.seen.count(OTHER_SCREEN) == watch.seen.count(FIRST_SCREEN) == 1
    assert "Traceback" not in watch.seen
    assert "Aborted" not in watch.seen


@pytest.mark.slow
def test_ids_on_a_terminal_can_be_typed_again(terminal, db):
    db.execute("SELECT setval('pgqueue.task_id_seq', 1234566)")
    db.execute("SELECT pgqueue.put('mail', '1')")
    shown = terminal("list", "mail", TERM="xterm")
    assert shown.end() == 0
    eventually(lambda: shown.shows("1234567 "))


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["status", "nodes"])
def test_a_value_that_is_wider_than_the_terminal_has_a_line_for_each_member(terminal, command, verb):
    value = {"pages": [*range(20)], "servers": ["alpha.example.org", "beta.example.org"], "n": None}
    key = "/page"
    command.lines(verb, "create" if verb == "nodes" else "set", key, json.dumps(value))
    (line,) = command.lines(verb, "get", key)
    assert json.loads(line) == value
    shown = terminal(verb, "get", key, TERM="xterm")
    assert shown.end() == 0
    eventually(lambda: shown.shows(r"\}\r?\n$"))
    assert json.loads(shown.seen) == value
    assert [line.split(":")[0].strip(' "') for line in shown.seen.splitlines()[1:-1]] == [*json.loads(shown.seen)]


@pytest.mark.slow
def test_a_dumb_terminal_gets_one_table_below_the_other(terminal, blocking):
    blocking().queue("mail").put(1)
    watch = terminal("stats", "--watch", "--interval", "0.05", TERM="dumb")
    eventually(lambda: watch.shows("mail.*mail.*mail"))
    watch.interrupt()
    assert watch.end() == 130
    assert "\x1b" not in watch.seen


@pytest.mark.slow
def test_a_question_at_a_terminal(terminal, blocking):
    queue = blocking().queue("mail")
    queue.put_many([1, 2])
    asked = terminal("truncate", "mail", TERM="dumb")
    eventually(lambda: asked.shows(r"Remove the 2 tasks of mail\? \[y/N\]"))
    asked.type("y\n")
    assert asked.end() == 0
    assert queue.stats()["total"] == 0


@pytest.mark.slow
def test_put_at_a_terminal_does_not_wait_for_lines(terminal):
    put = terminal("put", "mail", TERM="dumb")
    assert put.end() == 2
    eventually(lambda: put.shows("give DATA, or JSON lines on standard input"))


@pytest.mark.slow
def test_put_at_a_terminal_reads_lines_if_asked_to(terminal, blocking):
    put = terminal("put", "mail", "-", TERM="dumb")
    put.type("[1]\n\x04")  # Ctrl-D at the beginning of a line ends it
    assert put.end() == 0
    assert blocking().queue("mail").take(0).data == [1]


@pytest.mark.slow
def test_watch_in_a_pipe_that_closes(dsn):
    arguments = ("--dsn", dsn, "stats", "--watch", "--interval", "0.05")
    with started(*arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert [process.stdout.readline() for _ in range(3)][1].startswith("QUEUE")
        process.stdout.close()
        assert process.wait(30) == 1
        assert process.stderr.read() == ""


# --- signals and output


@pytest.mark.parametrize("line", ["take q", "take q --ack", "take q -- true", "wait c", "subscribe c"])
def test_ctrl_c_while_it_waits(command, monkeypatch, line):
    perform = Shell.perform

    def interrupted(self, step):
        if isinstance(step, Wait) and step.seconds is None:
            signal.raise_signal(signal.SIGINT)
        return perform(self, step)

    monkeypatch.setattr(Shell, "perform", interrupted)
    done = command(*line.split())
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


@pytest.mark.slow
def test_ctrl_c_in_the_middle_of_lines(dsn, blocking):
    queue = blocking().queue("q")
    process = subprocess.Popen(
        [sys.executable, "-m", "pgqueue", "--dsn", dsn, "put", "q", "-"],
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    with process:
        process.stdin.write(b"1\n" * 20_000)  # so that some of them are sent
        process.stdin.flush()
        eventually(lambda: queue._shell.run(WRITING))
        process.send_signal(signal.SIGINT)
        out, said = process.communicate(timeout=30)
    assert (process.returncode, out, said) == (130, b"", b"")
    assert queue.stats()["total"] == 0


WRITING = Call(
    "SELECT count(*) FROM pg_stat_activity"
    " WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_xid IS NOT NULL",
    (),
    lambda rows: rows[0][0],
)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux")
def test_output_that_cannot_be_written(dsn):
    """A full disk, and no output at all."""
    program = (
        f'set -u; pgqueue() {{ {sys.executable} -m pgqueue --dsn "$DSN" "$@"; }}\n'
        "pgqueue stats > /dev/full; echo $?; pgqueue put q 1 2 >&-; echo $?"
    )
    done = subprocess.run(
        ["sh", "-c", program], env=environment(DSN=dsn), capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.split() == ["1", "0"]
    assert done.stderr == "Error: No space left on device\n"


# --- completion


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_the_script_of_a_shell(shell):
    done = invoke("completion", shell)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"_PGQUEUE_COMPLETE={shell}_complete" in done.stdout


def complete(*words: str, **settings: str) -> list[str]:
    """What bash is told of the last word."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [*os.environ]:
            if name.startswith("PG") or name == "DATABASE_URL":
                patch.delenv(name)
        for name, value in settings.items():
            patch.setenv(name, value)
        parser = BashComplete(cli.main, {}, "pgqueue", "_PGQUEUE_COMPLETE")
        return [item.value for item in parser.get_completions([*words[:-1]], words[-1])]


def test_completion_of_commands_options_and_queues(dsn, blocking, monkeypatch):
    monkeypatch.setattr(names, "PATIENCE", 30)
    for name in ("mail", "main street", "other"):
        blocking().create_queue(name)
    assert complete("pe") == ["peek", "peek-next"]
    assert "--priority" in complete("put", "--")
    assert complete("--dsn", dsn, "put", "ma") == ["mail", "main street"]
    assert complete("stats", "mail", "o", PGQUEUE_DSN=dsn) == ["other"]
    assert complete("peek-next", "q", "--state", "b") == ["buried"]


def test_completion_is_silent_where_there_is_no_database(empty_dsn, tmp_path):
    home = {"PGQUEUE_HOME": str(tmp_path)}
    assert complete("put", "m", PGQUEUE_DSN=empty_dsn, **home) == []
    assert complete("put", "m", PGQUEUE_DSN="postgresql://127.0.0.1:1/none", **home) == []
    assert complete("put", "m", PGQUEUE_DSN="nonsense", **home) == []
    assert complete("put", "m", **home) == []
    assert list(tmp_path.iterdir()) == []  # no server was made for it


@pytest.mark.slow
def test_bash_completes():
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    script = (
        "source <(pgqueue completion bash); complete -p pgqueue; COMP_WORDS=(pgqueue pee); COMP_CWORD=1;"
        ' _pgqueue_completion pgqueue; echo "${COMPREPLY[@]}"'
    )
    done = subprocess.run(
        ["bash", "-c", script], env=environment(PATH=path), capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.splitlines()[-1] == "peek peek-next"
    assert done.stderr == ""
