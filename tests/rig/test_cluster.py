"""The rig of a cluster that changes: its short form finds nothing, and what is planted is found."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from checkout import CHECKOUT

sys.path.append(str(CHECKOUT))  # behind everything else: pgqueue stays the installed one

from faults.cluster import changes, measures
from faults.cluster.changes import Change, Scene
from faults.journal import Life, parse
from faults.ledger import Window

#: Ids of server 1.
ID = 1 << measures.SHIFT


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("undisturbed")
@pytest.mark.once
def test_the_short_form_finds_no_violation(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "faults.cluster", "--short"]
    done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True)
    print(done.stdout, done.stderr)
    assert done.returncode == 0
    assert "| refuse, home server |" in done.stdout
    assert "| silent |" in done.stdout


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("undisturbed")
@pytest.mark.parametrize(("planted", "rule"), [(changes.lose, "lost"), (changes.repeat, "ran again")])
def test_what_is_planted_is_found(planted: Callable[[Scene], None], rule: str) -> None:
    steps: tuple[Change, ...] = (changes.join, planted, changes.drain, changes.move, changes.remove)
    proof = changes.run(1.0, 40, changes=steps).proof
    assert [violation.rule for violation in proof.violations] == [rule]


def life(name: str, text: str) -> Life:
    """A life from its journal, with spaces for tabs."""
    return Life(name, 0, lines=parse("".join("\t".join(line.split()) + "\n" for line in text.strip().splitlines())))


def rules(
    *lives: Life, away: tuple[float, float] | None = None, until: float = 10.0, fault: str = "refuse"
) -> list[str]:
    absent = [(1, Window(fault, *away))] if away else []
    return [one.rule for one in measures.check(lives, absent, until, measures.Control(lives))]


PUT = life("put-1", f"1.0 putting work - a\n 1.1 put a {ID}")


def test_a_worker_that_begins_nothing_while_a_task_is_ready_is_idle() -> None:
    worker = life("worker-1", f"0.5 took z 1 1\n 2.3 took a {ID} 1")
    assert rules(PUT, worker) == ["idle"]
    assert rules(PUT, worker, away=(1.0, 2.0)) == []  # the task was not to be had
    beside = life("worker-2", f"0.5 took z 1 1\n 1.9 took a {ID} 1")
    assert rules(PUT, worker, beside) == []  # since then none is ready


def test_the_time_in_which_the_machine_stood_still_is_not_a_workers() -> None:
    worker = life("worker-1", f"0.5 took z 1 1\n 2.3 took a {ID} 1")
    assert rules(PUT, worker, life("control", "1.5 beat\n 2.0 beat")) == []
    assert rules(PUT, worker, life("control", "0.2 beat\n 0.9 beat")) == ["idle"]


def test_a_slow_put_while_a_server_is_away() -> None:
    for end in (f"put a {ID}", "unput a ServerError"):
        slow = life("put-1", f"1.0 putting later - a\n 1.6 {end}")
        assert rules(slow, away=(1.2, 2.0)) == ["slow put"]
        assert rules(slow, away=(1.7, 2.0)) == []
        in_a_lane = life("put-1", f"1.0 putting lanes x a\n 3.3 {end}")
        assert rules(in_a_lane, away=(1.2, 2.0)) == ["slow put"]
        assert rules(in_a_lane, away=(1.2, 2.0), fault="silent") == []
        later = life("put-1", f"1.0 putting lanes x a\n 3.6 {end}")
        assert rules(later, away=(1.2, 2.0), fault="silent") == ["slow put"]


def test_the_lanes_of_each_server_are_lanes_of_their_own() -> None:
    puts = life("put-lanes", f"1.0 putting lanes x a\n 1.1 put a {ID}\n 1.2 putting lanes x b\n 1.3 put b {2 * ID}")
    measures.tell_servers([puts])
    assert [line.fields[1] for line in puts.lines if line.event == "putting"] == ["x of server 1", "x of server 2"]
