"""The fault rig works: its short form finds nothing, what is planted is found, and nothing is left behind."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from checkout import CHECKOUT
from eventually import eventually
from servers import Server

sys.path.append(str(CHECKOUT))  # behind everything else: pgqueue stays the installed one

from faults import report
from faults.arena import Arena, Options, Planned
from faults.journal import parse
from faults.kinds import Fault, Scene

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.usefixtures("undisturbed")]
RIG = [sys.executable, "-m", "faults"]


@pytest.fixture
def temporary(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where the rig makes its folders. Not pytest's tmp_path: as root, the server's account has to pass it."""
    folder = Path(tempfile.mkdtemp(prefix="pgq"))
    folder.chmod(0o711)
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.once
def test_the_short_form_finds_no_violation(temporary: Path, tmp_path: Path) -> None:
    report = tmp_path / "faults.md"
    done = subprocess.run(
        [*RIG, "--short", "--rate", "50", "--report", report], cwd=CHECKOUT, capture_output=True, text=True
    )
    print(done.stdout, done.stderr)
    assert done.returncode == 0
    assert "| kill | 40 |" in report.read_text()
    assert os.listdir(temporary) == []


def test_a_database_of_its_own_on_a_given_server(pg_server: Server, temporary: Path) -> None:
    command = [*RIG, "kill", "restart", "--times", "5", "--dsn", pg_server.dsn("postgres")]
    done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True)
    print(done.stdout, done.stderr)
    assert done.returncode == 0
    assert "| kill | 5 |" in done.stdout
    assert "Left out: restart-fast: it needs a server that the rig may stop." in done.stdout
    with pg_server.connect() as admin:
        assert admin.execute("SELECT FROM pg_database WHERE datname LIKE 'pgqueue_faults%'").fetchall() == []


def run_again(scene: Scene) -> None:
    """Put a task anew that was acked, as a queue would do that forgets an ack."""
    lines = parse(scene.crew.members["take"].path.read_text())
    label = next(line.fields[0] for line in lines if line.event == "acked")
    with scene.server.connect() as admin:
        admin.execute("SELECT pgqueue.put('shared', jsonb_build_object('label', %s::text))", [label])


def lose(scene: Scene) -> None:
    """Remove a task that is ready."""
    query = """
        DELETE FROM pgqueue.task t WHERE id = (
            SELECT r.id FROM pgqueue.task r JOIN pgqueue.queue q ON q.id = r.queue_id
             WHERE q.name = 'sql' AND NOT EXISTS (SELECT FROM pgqueue.take k WHERE k.task_id = r.id) LIMIT 1)
        RETURNING t.id
    """
    scene.crew.stop("take-sql")  # so that its queue has one
    try:
        with scene.server.connect() as admin:
            while admin.execute(query).fetchone() is None:
                scene.sleep(0.01)
    finally:
        scene.crew.resume("take-sql")


@pytest.mark.parametrize(("act", "rule"), [(run_again, "ran again"), (lose, "lost")])
def test_what_is_planted_is_found(act: Callable[[Scene], None], rule: str) -> None:
    planted = Fault("planted", "plain", act)
    proof = Arena("plain", [Planned(planted, 1, 0.0)], Options(rate=50), threading.Event(), print).run()
    assert [violation.rule for violation in proof.violations] == [rule]
    label = proof.violations[0].text.split()[0]
    assert any(label in line for line in report.around([proof]))


def test_an_interrupted_rig_leaves_nothing_behind(temporary: Path) -> None:
    rig = subprocess.Popen(
        [*RIG, "snapshot", "--seconds", "600"], cwd=CHECKOUT, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    assert rig.stderr is not None
    # A line about the account of the embedded server may come first.
    assert any("plain: none" in line for line in rig.stderr)  # its processes are at work
    os.killpg(rig.pid, signal.SIGINT)  # as Ctrl-C: to the rig and all its processes
    rig.stderr.close()
    assert rig.wait(60) != 0
    assert os.listdir(temporary) == []
    eventually(lambda: ended(rig.pid))


def ended(group: int) -> bool:
    """Whether no process of the group is left. Those that the rig's end has ended may be zombies for a moment."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return True
    return False
