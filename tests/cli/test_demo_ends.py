"""Nothing of `pgqueue demo` outlives it, whichever of its processes dies at any moment; and the next demo works."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import tempfile
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from commands import PROGRAM, environment
from eventually import eventually
from steady import steady

pytestmark = pytest.mark.once

GONE_WITHIN = 5.0  # seconds from the end of the demo until nothing of it is left

#: The line of the demo's output that tells each moment.
MOMENTS = {"start": r"^workers ", "work": r"^working: [1-9]", "return": r"^killed "}
ENDS = {"INT": 130, "TERM": 143, "HUP": 129, "KILL": -9}
SERVER = {
    "reaper": r"reaper\.py",
    "postmaster": r"^\S*postgres -D ",
    "backend": r"^postgres: .*\[local\]",
}


class Demo:
    """A demo under way, in a session of its own, as in a terminal of its own."""

    def __init__(self, folder: Path, *options: str, **settings: str | Path) -> None:
        name = "PGQUEUE_TEST_MARK"
        self._mark = f"{name}={uuid.uuid4()}"
        self._home = str(settings.get("PGQUEUE_HOME", "no home"))
        self.output: list[str] = []
        self.errors: list[str] = []
        self.process = subprocess.Popen(
            [*PROGRAM, "demo", "--folder", str(folder), *options],
            # Of the account only root's server takes note; without it there is a warning.
            env=environment(PGQUEUE_EMBEDDED_USER="nobody", **settings, **{name: self._mark.partition("=")[2]}),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._readers = [
            threading.Thread(target=self._read, args=one, daemon=True)
            for one in ((self.process.stdout, self.output), (self.process.stderr, self.errors))
        ]
        for reader in self._readers:
            reader.start()

    def says(self, pattern: str) -> re.Match[str] | None:
        """The first line of its output that matches."""
        return next((found for line in [*self.output] if (found := re.search(pattern, line))), None)

    def reaches(self, moment: str) -> None:
        eventually(lambda: self.says(MOMENTS[moment]) or self.process.poll() is not None, within=120)
        assert self.says(MOMENTS[moment]), self.told()

    def ends(self) -> int:
        """Wait for its end. Returns its exit code."""
        self.process.wait(120)
        for reader in self._readers:
            reader.join(30)  # at the end of the file: no worker has the pipe any more
        return self.process.returncode

    def told(self) -> str:
        return "".join([*self.output, *self.errors])

    def workers(self) -> list[int]:
        """The first workers."""
        found = eventually(lambda: self.says(r"^workers .*: (\d+), (\d+)$"))
        return [int(pid) for pid in found.groups()]

    def processes(self) -> dict[int, str]:
        """Its processes that live, with their command lines: they have its mark, and those of its server its folder."""
        found = {}
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                if (folder / "stat").read_text().rsplit(")", 1)[1].split()[0] == "Z":
                    continue
                line = (folder / "cmdline").read_text(errors="replace").replace("\0", " ")
                marked = self._mark in (folder / "environ").read_text(errors="replace").split("\0")
                if marked or self._home in line or os.readlink(folder / "cwd").startswith(self._home):
                    found[int(folder.name)] = line
            except OSError:  # it has ended, or belongs to another account
                continue
        return found

    def of_the_server(self, kind: str) -> int:
        return eventually(lambda: [pid for pid, line in self.processes().items() if re.search(SERVER[kind], line)])[-1]

    def end(self) -> None:
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()

    @staticmethod
    def _read(stream: Any, lines: list[str]) -> None:
        with stream:
            for line in stream:
                lines.append(line)


@contextmanager
def demo(folder: Path, *options: str, **settings: str | Path) -> Iterator[Demo]:
    under_way = Demo(folder, *options, **settings)
    try:
        yield under_way
    finally:
        under_way.end()


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Work for two workers for a few seconds."""
    return _files(tmp_path_factory.mktemp("files"), 40)


@pytest.fixture(scope="module")
def few_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Work for a second."""
    return _files(tmp_path_factory.mktemp("few"), 20)


@pytest.fixture(scope="module")
def home() -> Iterator[Path]:
    """A folder of embedded servers, which their account can enter."""
    with tempfile.TemporaryDirectory(prefix="pgqueue-demo-", dir="/tmp") as name:
        folder = Path(name)
        folder.chmod(0o711)
        yield folder


def _files(folder: Path, n: int) -> Path:
    for one in range(n):
        (folder / f"{one:03}.txt").write_text("line\n" * one)
    return folder


def nothing_is_left(ended: Demo, watch: Any) -> None:
    """Within GONE_WITHIN, which does not count while a control stands still."""
    eventually(lambda: not ended.processes() or watch() > GONE_WITHIN, within=120)
    assert ended.processes() == {}


def the_next_one_kills_and_passes(folder: Path, **settings: str | Path) -> None:
    with demo(folder, **settings) as after:
        assert (after.ends(), after.errors) == (0, []), after.told()
        assert after.says("^killed ")
        assert after.says("^checked ")


@pytest.mark.slow
@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("number", ENDS)
def test_the_demo_ends(dsn: str, home: Path, files: Path, few_files: Path, number: str, moment: str) -> None:
    with steady(dsn, home) as control, demo(files, PGQUEUE_HOME=home) as ended:
        ended.reaches(moment)
        began = control()
        ended.process.send_signal(getattr(signal, f"SIG{number}"))
        assert (ended.ends(), ended.errors) == (ENDS[number], []), ended.told()
        nothing_is_left(ended, lambda: control() - began)
    the_next_one_kills_and_passes(few_files, PGQUEUE_HOME=home)


@pytest.mark.slow
@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("place", [0, 1])
def test_a_worker_is_killed(dsn: str, home: Path, files: Path, place: int, moment: str) -> None:
    """The demo starts another one, kills one itself, and passes."""
    with steady(dsn, home) as control, demo(files, PGQUEUE_HOME=home) as ended:
        ended.reaches(moment)
        with contextlib.suppress(ProcessLookupError):  # the demo has killed it itself
            os.kill(ended.workers()[place], signal.SIGKILL)
        assert (ended.ends(), ended.errors) == (0, []), ended.told()
        assert ended.says("^killed ")
        began = control()
        nothing_is_left(ended, lambda: control() - began)


@pytest.mark.slow
@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("kind", SERVER)
def test_a_process_of_the_server_is_killed(
    dsn: str, home: Path, files: Path, few_files: Path, kind: str, moment: str
) -> None:
    """The demo goes on without the reaper. It fails with one line without the server."""
    with steady(dsn, home) as control, demo(files, PGQUEUE_HOME=home) as ended:
        ended.reaches(moment)
        os.kill(ended.of_the_server(kind), signal.SIGKILL)
        code = ended.ends()
        if kind == "reaper":
            assert (code, ended.errors) == (0, []), ended.told()
        else:
            assert code == 1
            (line,) = ended.errors
            assert line.startswith("Error: the demo lost its connection to the server: ")
        began = control()
        nothing_is_left(ended, lambda: control() - began)
    the_next_one_kills_and_passes(few_files, PGQUEUE_HOME=home)


@pytest.mark.slow
def test_two_at_once_on_a_new_server(files: Path) -> None:
    """One migrates the new server and runs; the other one says why it does not."""
    with tempfile.TemporaryDirectory(prefix="pgqueue-demo-", dir="/tmp") as name:
        Path(name).chmod(0o711)
        with demo(files, PGQUEUE_HOME=name) as one, demo(files, PGQUEUE_HOME=name) as other:
            assert sorted([one.ends(), other.ends()]) == [0, 1], one.told() + other.told()
            assert one.errors + other.errors == ["Error: another demo is running in this database\n"]
            eventually(lambda: not one.processes())


ON_SERVERS = ("--nodes", "2")


def where_its_servers_are(home: Path) -> dict[str, str | Path]:
    """The demo on servers of its own has them in the folder for temporary files."""
    return {"PGQUEUE_HOME": home, "TMPDIR": home}


@pytest.mark.slow
def test_a_server_is_killed_and_its_standby_takes_over(home: Path, files: Path) -> None:
    with demo(files, *ON_SERVERS, **where_its_servers_are(home)) as ended:
        assert (ended.ends(), ended.errors) == (0, []), ended.told()
        for label in ("killed", "promoted", "all work", "refused", "done", "checked"):
            assert ended.says(f"^{label} "), ended.told()
        eventually(lambda: not ended.processes() and not list(home.glob("pgqueue-*")), within=60)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "moment"), [("INT", "work"), ("TERM", "return"), ("HUP", "work"), ("KILL", "return")]
)
def test_the_demo_on_servers_ends(home: Path, files: Path, number: str, moment: str) -> None:
    with demo(files, *ON_SERVERS, **where_its_servers_are(home)) as ended:
        ended.reaches(moment)
        ended.process.send_signal(getattr(signal, f"SIG{number}"))
        assert (ended.ends(), ended.errors) == (ENDS[number], []), ended.told()
        eventually(lambda: not ended.processes() and not list(home.glob("pgqueue-*")), within=60)
