"""`pgqueue demo` as a process, on folders with every kind of file name and on one that is large enough to kill in."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import termios
import time
from pathlib import Path

import pytest
from commands import DEADLINE, invoke, run, started
from eventually import eventually, in_time
from steady import steady

import pgqueue
from pgqueue import demo
from pgqueue.demo.files import readable_files, standard_library

pytestmark = pytest.mark.once

ODD = [
    "a b.txt",
    " ",
    "naïve.txt",
    "日本語",
    "😀.txt",
    "new\nline",
    'quo"te\\',
    "-n",
    "a" * 200,
    "$(x)",
    "%s",
    "nul\\u0000",
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A few hundred files, most of them with something odd."""
    folder = tmp_path / "files"
    folder.mkdir()
    for n in range(200):
        (folder / f"{n:03}.txt").write_text("line\n" * n)
    for name in ODD:
        below = folder / f"dir {name}"
        below.mkdir()
        (below / name).write_bytes(b"\x00\xff\n")
    (folder / "empty").touch()
    (folder / "unreadable").write_text("secret\n")
    (folder / "unreadable").chmod(0)
    (folder / "link").symlink_to("000.txt")
    # None of these is a file to read, or none whose name JSON can hold.
    (folder / "dangling").symlink_to("nowhere")
    (folder / "__pycache__").mkdir()
    (folder / "__pycache__" / "x.pyc").touch()
    os.mkfifo(folder / "fifo")
    with contextlib.suppress(OSError):  # a file system may insist on text
        Path(os.fsdecode(os.fsencode(folder) + b"/undecodable-\xff")).touch()
    return folder


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """Files for a second of work, with `--seconds 1` and two workers."""
    for n in range(24):
        (tmp_path / f"{n:03}.txt").write_text("line\n" * n)
    return tmp_path


def expected(folder: Path) -> int:
    return 200 + len(ODD) + 2 + os.access(folder / "unreadable", os.R_OK)  # root may read it


def rows(output: str) -> dict[str, str]:
    """The labelled lines of the demo's output."""
    return dict(re.findall(r"^(\w[\w ]*?)  +(\S.*)$", output, re.MULTILINE))


def workers(parent: int) -> list[int]:
    """The worker processes of a demo."""
    ps = subprocess.run(["ps", "-ax", "-o", "pid=", "-o", "ppid="], capture_output=True, text=True, check=True)
    return [int(pid) for pid, ppid in map(str.split, ps.stdout.splitlines()) if int(ppid) == parent]


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def test_which_files_are_read(folder):
    names = {os.path.relpath(path, folder) for path in readable_files(folder)}
    assert len(names) == expected(folder)
    assert {f"dir {name}/{name}" for name in ODD} | {"empty", "link", "000.txt"} <= names
    assert names.isdisjoint({"dangling", "fifo", "__pycache__/x.pyc"})
    assert not [name for name in names if name.startswith("undecodable")]


def test_the_standard_library_is_without_what_is_installed_in_it():
    files = readable_files(standard_library())
    assert len(files) > 500  # distributions leave parts of it out
    assert not [path for path in files if "/site-packages/" in path or "/__pycache__/" in path]


@pytest.mark.slow
def test_in_plain_lines(dsn, folder):
    done = run("--dsn", dsn, "demo", "--folder", folder, "--no-kill", "--seconds", "0")
    assert (done.returncode, done.stderr) == (0, "")
    files = expected(folder)
    assert done.stdout.startswith("pgqueue demo: ")
    assert "\r" not in done.stdout
    assert "\033" not in done.stdout
    assert re.search(rf"^working: {files} of {files} tasks  100%  [\d.,]+/s  ", done.stdout, re.MULTILINE)
    found = rows(done.stdout)
    assert found["server"].startswith("PostgreSQL ")
    assert found["tasks"] == f"{files}, one for each file of {folder}: count its lines, compute its SHA-256"
    assert re.fullmatch(r"2 processes with 4 tasks at a time each: \d+, \d+", found["workers"])
    assert re.fullmatch(rf"{files} tasks in [\d.]+ s, [\d.,]+ tasks/s", found["done"])
    lines = sum(Path(path).read_bytes().count(b"\n") for path in readable_files(folder))
    assert found["checked"] == f"{lines:,} lines: each file's digest equals the direct computation"
    assert not {"killed", "given back"} & found.keys()
    assert " -m pgqueue stats " in done.stdout
    assert "with --dsn as here" in done.stdout


@pytest.mark.timeout(600)
def test_the_tasks_of_the_killed_worker_come_back_within_a_second(dsn, small):
    """From the kill until the last of them can be taken; without the time in which a control beside it stood still."""

    def came_back() -> float:
        output, times = "", {}
        command = ["demo", "--dsn", dsn, "--folder", small, "--seconds", "3"]
        with (
            steady(dsn) as control,
            started(*command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process,
        ):
            for line in process.stdout:
                output += line
                times[line.partition("  ")[0]] = time.time()
            assert process.wait(DEADLINE) == 0, output
            lost = control.lost(times["killed"] - 1, times["given back"])
        found = rows(output)
        held = re.fullmatch(r"worker \d+ by kill -9, while it held (\d+) tasks?; .*", found["killed"])
        assert held
        did = "1 task" if held[1] == "1" else f"{held[1]} tasks"
        assert found["checked"].endswith(f"; other workers did all {did} of the killed one")
        back = re.search(r"(?:the last|the task,) ([\d.]+) s", found["given back"])
        assert back
        return float(back[1]) - lost

    in_time(came_back, within=1.0)


def screen(dsn: str, folder: Path, width: int, *options: str, **settings: str) -> bytes:
    """What the demo writes to a terminal of a width."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, width, 0, 0))
    command = ["--dsn", dsn, "demo", "--folder", str(folder), "--no-kill", "--seconds", "0", "--workers", "1", *options]
    environment = {"TERM": "xterm-256color", "COLUMNS": "", "NO_COLOR": "", **settings}
    with started(*command, settings=environment, stdout=theirs, stderr=subprocess.PIPE) as process:
        os.close(theirs)
        output = b""
        with contextlib.suppress(OSError):  # EIO: no process has the other end any more
            while piece := os.read(ours, 65536):
                output += piece
        os.close(ours)
        assert process.wait(DEADLINE) == 0
        assert process.stderr.read() == b""
    return output


@pytest.mark.slow
@pytest.mark.parametrize("width", [40, 100])
def test_a_bar_on_a_terminal(dsn, small, width):
    output = screen(dsn, small, width)
    assert b"\033[1m" in output  # bold
    assert b"\033[1;32m" in output  # the check
    assert b"1 process with 4 tasks at a time: " in b" ".join(output.split())
    lines = re.split(r"[\r\n]+", re.sub(rb"\033\[[\d;?]*[A-Za-z]", b"\n", output).decode())
    unbroken = (str(small), "host=", "dbname=", " -m pgqueue")  # words of any length, which the terminal breaks
    assert [line for line in lines if len(line) > width and not any(word in line for word in unbroken)] == []


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{"TERM": "dumb"}, {"NO_COLOR": "1"}], ids=["dumb", "no colour"])
def test_no_colours_on_a_terminal(dsn, small, settings):
    output = screen(dsn, small, 80, **settings)
    assert not re.search(rb"\033\[[\d;]*3\dm", output)
    assert b"\033" not in output or "TERM" not in settings


@pytest.mark.slow
def test_its_output_may_end_early(dsn, small):
    """As in `pgqueue demo | head -1`."""
    with started("--dsn", dsn, "demo", "--folder", small, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout.readline()
        process.stdout.close()
        process.wait(DEADLINE)
        assert process.stderr.read() == b""  # at the end of the file: its workers have ended too


@pytest.mark.slow
def test_without_a_worker_to_kill_it_fails(dsn, tmp_path, monkeypatch):
    """Of one file the worker has acked the task as a rule before the demo can kill it, but not always."""
    monkeypatch.setattr("pgqueue.demo.holder", lambda *given: None)
    (tmp_path / "one").touch()
    done = invoke("--dsn", dsn, "demo", "--folder", str(tmp_path), "--seconds", "0")
    assert done.returncode == 1
    assert done.stderr == (
        "Error: the demo should have killed a worker, and none held a task at that moment: choose a --folder with more "
        "files, or --no-kill\n"
    )


@pytest.mark.slow
def test_a_worker_that_cannot_work_ends_it(dsn, small, tmp_path_factory):
    folder = tmp_path_factory.mktemp("broken")
    (folder / "sitecustomize.py").write_text(
        "import sys\nif 'worker' in sys.argv or 'tied.py' in str(sys.orig_argv):\n    sys.exit('broken on purpose')\n"
    )
    done = run("--dsn", dsn, "demo", "--folder", small, PYTHONPATH=folder)
    assert done.returncode == 1
    assert re.fullmatch(r"Error: worker \d+ ended with exit code 1: .*broken on purpose\n", done.stderr)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_it_and_its_workers(dsn, small, number):
    with started("--dsn", dsn, "demo", "--folder", small, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        children = eventually(lambda: len(found := workers(process.pid)) == 2 and found)
        process.send_signal(number)
        assert process.wait(DEADLINE) == 128 + number
        assert process.stderr.read() == b""
    for pid in children:  # one that was being started when the signal came ends by its line, a moment later
        eventually(lambda pid=pid: not alive(pid))


@pytest.mark.slow
def test_its_workers_end_with_it_when_it_is_killed(dsn, small):
    with started("--dsn", dsn, "demo", "--folder", small, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        children = eventually(lambda: len(found := workers(process.pid)) == 2 and found)
        process.kill()
        process.wait()
    eventually(lambda: not [pid for pid in children if alive(pid)])


@pytest.mark.slow
def test_two_demos_keep_off_each_other(dsn, db, folder):
    db.execute("SELECT pg_advisory_lock(%s)", [demo.LOCK])
    done = run("--dsn", dsn, "demo", "--folder", folder)
    assert (done.returncode, done.stderr) == (1, "Error: another demo is running in this database\n")


@pytest.mark.slow
def test_what_an_earlier_demo_left_is_put_away(dsn, db, folder):
    db.execute('SELECT pgqueue.put(\'demo\', \'{"run": "old", "path": "/nowhere"}\') FROM generate_series(1, 1500)')
    db.execute('SELECT pgqueue.put(\'demo-results\', \'{"run": "old", "path": "/nowhere"}\')')
    done = run("--dsn", dsn, "demo", "--folder", folder, "--no-kill", "--seconds", "0")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow
def test_a_folder_without_files(dsn, tmp_path):
    done = run("--dsn", dsn, "demo", "--folder", tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"Error: there are no files to read in {tmp_path}\n"


@pytest.mark.slow
@pytest.mark.parametrize("wrong", ["nowhere", "a-file"])
def test_a_wrong_folder(dsn, tmp_path, wrong):
    (tmp_path / "a-file").touch()
    done = run("--dsn", dsn, "demo", "--folder", tmp_path / wrong)
    assert (done.returncode, done.stdout) == (2, "")
    assert "Traceback" not in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "error"),
    [
        (["--nodes", "1"], "1 is not in the range 2<=x<=8"),
        (["--nodes", "many"], "'many' is not a valid integer range"),
        (["--nodes", "2", "--dsn", "postgresql:///x"], "--nodes starts servers of its own, so it goes without --dsn"),
    ],
)
def test_servers_that_it_cannot_start(folder, options, error):
    done = run("demo", "--folder", folder, *options)
    assert done.returncode == 2
    assert error in done.stderr


def test_a_disk_without_room_for_the_servers(folder, monkeypatch):
    monkeypatch.setattr("pgqueue.demo.servers.ROOM", 10**9)
    with pytest.raises(pgqueue.Error, match=r"^4 servers need 4000000000 MB in .* MB are free: set TMPDIR"):
        demo.run_cluster(folder, 3, True, 1.0)
