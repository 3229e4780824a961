"""`pgqueue demo` as a process, on folders with every kind of file name and on one that is large enough to kill in."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import signal
import subprocess
from pathlib import Path

import pytest
from commands import DEADLINE, run, started
from eventually import eventually, in_time

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
BIG = 1_500_000  # bytes; sparse: they cost reading, but no disk


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
def large(tmp_path: Path) -> Path:
    """Files that keep two workers busy for about a second."""
    for n in range(300):
        with (tmp_path / f"{n:03}").open("wb") as file:
            file.truncate(BIG)
    return tmp_path


def expected(folder: Path) -> int:
    return 200 + len(ODD) + 2 + os.access(folder / "unreadable", os.R_OK)  # root may read it


def rows(output: str) -> dict[str, str]:
    """The table at the end of the demo's output."""
    return dict(re.findall(r"^  (\S.*?)  +(\S.*)$", output, re.MULTILINE))


def workers(parent: int) -> list[int]:
    """The worker processes of a demo."""
    ps = subprocess.run(["ps", "-ax", "-o", "pid=", "-o", "ppid="], capture_output=True, text=True, check=True)
    return [int(pid) for pid, ppid in map(str.split, ps.stdout.splitlines()) if int(ppid) == parent]


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


def test_in_plain_lines(dsn, folder):
    done = run("--dsn", dsn, "demo", "--folder", folder, "--no-kill")
    assert (done.returncode, done.stderr) == (0, "")
    files = expected(folder)
    first, *_ = done.stdout.splitlines()
    assert first == f"{files} files of {folder}, 2 worker processes"
    assert "\r" not in done.stdout
    assert "\033" not in done.stdout
    assert re.search(rf"^{files}/{files} files  [\d,]+/s  0 queued$", done.stdout, re.MULTILINE)
    table = rows(done.stdout)
    assert table["files"] == str(files)
    lines = sum(Path(path).read_bytes().count(b"\n") for path in readable_files(folder))
    assert table["lines"] == f"{lines:,}"
    assert (table["tasks redelivered"], table["came back in"]) == ("0", "-")
    assert float(table["tasks/s"].replace(",", "")) > 0
    assert table["check"] == "every file and digest equals the direct computation"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_tasks_of_the_killed_worker_come_back_within_a_second(dsn, large, undisturbed):
    def came_back() -> float:
        done = run("demo", "--dsn", dsn, "--folder", large)
        assert (done.returncode, done.stderr) == (0, ""), done.stdout
        killed = re.search(
            r"^killed worker \d+ \(SIGKILL\), which held (\d+) tasks, and started another$", done.stdout, re.M
        )
        assert killed
        table = rows(done.stdout)
        assert int(table["tasks redelivered"]) >= int(killed[1]) > 0
        assert table["check"] == "every file and digest equals the direct computation"
        return float(table["came back in"].removesuffix(" s after the kill"))

    in_time(came_back, within=1.0)


def test_a_bar_on_a_terminal(dsn, folder):
    ours, theirs = pty.openpty()
    with started(
        "--dsn", dsn, "demo", "--folder", folder, "--no-kill", "--workers", "1", stdout=theirs, stderr=subprocess.PIPE
    ) as process:
        os.close(theirs)
        output = b""
        with contextlib.suppress(OSError):  # EIO: nobody has the other end any more
            while piece := os.read(ours, 65536):
                output += piece
        os.close(ours)
        assert process.wait(DEADLINE) == 0
        assert process.stderr.read() == b""
    files = expected(folder)
    assert f"\r\033[K[{'#' * 30}] {files}/{files} files".encode() in output
    assert b"1 worker processes" in output


def test_its_output_may_end_early(dsn, folder):
    """As in `pgqueue demo | head -1`."""
    with started("--dsn", dsn, "demo", "--folder", folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout.readline()
        process.stdout.close()
        process.wait(DEADLINE)
        assert process.stderr.read() == b""  # at the end of the file: its workers have ended too


def test_ctrl_c_ends_it_and_its_workers(dsn, large):
    with started("--dsn", dsn, "demo", "--folder", large, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        children = eventually(lambda: len(found := workers(process.pid)) == 2 and found)
        process.send_signal(signal.SIGINT)
        assert process.wait(DEADLINE) == 130
        assert process.stderr.read() == b""
    for pid in children:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_two_demos_keep_off_each_other(dsn, db, folder):
    db.execute("SELECT pg_advisory_lock(%s)", [demo.LOCK])
    done = run("--dsn", dsn, "demo", "--folder", folder)
    assert (done.returncode, done.stderr) == (1, "Error: another demo is running in this database\n")


def test_what_an_earlier_demo_left_is_put_away(dsn, db, folder):
    db.execute('SELECT pgqueue.put(\'demo\', \'{"run": "old", "path": "/nowhere"}\') FROM generate_series(1, 1500)')
    db.execute('SELECT pgqueue.put(\'demo-results\', \'{"run": "old", "path": "/nowhere"}\')')
    done = run("--dsn", dsn, "demo", "--folder", folder, "--no-kill")
    assert (done.returncode, done.stderr) == (0, "")


def test_a_folder_without_files(dsn, tmp_path):
    done = run("--dsn", dsn, "demo", "--folder", tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"Error: there are no files to read in {tmp_path}\n"


@pytest.mark.parametrize("wrong", ["nowhere", "a-file"])
def test_a_wrong_folder(dsn, tmp_path, wrong):
    (tmp_path / "a-file").touch()
    done = run("--dsn", dsn, "demo", "--folder", tmp_path / wrong)
    assert (done.returncode, done.stdout) == (2, "")
    assert "Traceback" not in done.stderr
