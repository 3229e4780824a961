"""The benchmarks run, keep what they find, and write their page. No test asks for a speed."""

from __future__ import annotations

import signal
import subprocess
import sys
import xml.etree.ElementTree as xml
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest
from checkout import CHECKOUT
from eventually import eventually
from servers import Server

sys.path.append(str(CHECKOUT))  # behind everything else: pgqueue stays the installed one

from benchmarks import measuring, options, peers, plot, report
from benchmarks.bench import Bench, Measure
from benchmarks.cluster import servers as cluster_servers
from benchmarks.cluster import statements
from benchmarks.cpu import BackendTime
from benchmarks.findings import Findings, Lines, Row, at_least, at_most
from benchmarks.load import busy
from benchmarks.measures import MAIN, MEASURES
from benchmarks.peers.cell import Cell
from benchmarks.rounds import take_turns
from benchmarks.server import serve
from benchmarks.store import Kept, Run, Store, name_of

FINDINGS = Findings(
    [at_least("puts", "5/s", "10/s", 0.5, 0.6), at_most("waits", "1.00 ms", "2.00 ms", 0.5, 0.6), Row("bytes", "7")],
    [Lines("growth", "clients", "ms", {"pgqueue": [(1, 2.0), (10, 4.5)]}, logarithmic=True)],
)
PEERS = {
    "conditions": ["one machine"],
    "found": {"other": {"put": [3.0], "bulk": [4.0], "one": [5.0], "two": [6.0], "pick_up": [0.002]}},
    "about": {"other": {"versions": "other 1", "settings": "batch=10", "durability": "not durable"}},
    "tasks": {"other": 20_000},
    "failures": {"third": "pip install third: no such package"},
}


def a_store() -> Store:
    kept = Kept(FINDINGS, 1.5, "5 rounds")
    quiet, loaded = Run(0, ["a machine"], {"one": kept}), Run(2, ["beside 2 busy processes"], {"one": kept})
    return Store({"PostgreSQL 15": quiet, "PostgreSQL 15, loaded": loaded}, PEERS)


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=200, cwd=CHECKOUT)


@pytest.mark.slow
@pytest.mark.once
def test_it_measures_keeps_and_renders(pg_server: Server, tmp_path: Path) -> None:
    file = tmp_path / "found.json"
    short = ["--quick", "--rounds=1", f"--pg=dsn:{pg_server.conninfo}", f"--into={file}"]
    ended = run(*short, "--only=latency,publishing")
    assert ended.returncode == 0, ended.stderr
    assert "0 of 2 measures failed" in ended.stdout
    (name,) = Store.read(file).runs
    assert name == name_of(pg_server.version(), 0)

    again = run(*short, "--only=latency,publishing", "--missing")
    assert "0 of 0 measures failed" in again.stdout

    assert run(f"--render={file}", f"--out={tmp_path}").returncode == 0
    page = (tmp_path / "benchmarks.md").read_text()
    assert f"## {name}" in page
    assert "| idle pick-up, median" in page


@pytest.mark.slow
@pytest.mark.once
def test_a_cluster_sends_the_statements_of_a_client(own_bindir: Path | None) -> None:
    with cluster_servers.running(3, own_bindir) as servers:
        found = statements.measured(servers)
    for verb in ("put", "take", "ack", "put, take, ack in turn", "in batches"):
        sent = {name: statements.per_task(verb, counter) for name, counter in found[verb].items()}
        assert sent == dict.fromkeys(sent, sent["client"]), verb
        assert sent["client"] > 0


@pytest.mark.slow
def test_a_peer_is_measured_round_by_round(pg_server: Server, tmp_path: Path) -> None:
    with serve(f"dsn:{pg_server.conninfo}") as server:
        cell = Cell(Path(sys.executable), "pgqueue_peer.py", server.database, tmp_path)
        assert cell.describe()["durability"].startswith("durable")
        found = cell.measure(100, 5)
    assert found.keys() == {"put", "bulk", "one", "two", "pick_up"}
    assert all(value > 0 for value in found.values())


@pytest.mark.once
def test_a_peer_that_fails_is_named_and_has_no_figures() -> None:
    class Fine(Cell):
        def measure(self, tasks: int, beats: int) -> dict[str, float]:
            return {"put": 1.0}

    class Broken(Cell):
        def measure(self, tasks: int, beats: int) -> dict[str, float]:
            raise RuntimeError("put: no broker")

    fine, broken = (kind(Path("python"), "none.py", None, Path("folder")) for kind in (Fine, Broken))
    ours, theirs = peers.CONTENDERS[:2]
    failures: dict[str, str] = {}
    found: dict[str, peers.Found] = {}
    for _ in range(2):
        peers._round(options.parse(["--peers"]), {ours: fine, theirs: broken}, found, failures)
    assert found == {ours.name: {"put": [1.0, 1.0]}}
    assert failures == {theirs.name: "put: no broker"}


@pytest.fixture
def measures(monkeypatch: pytest.MonkeyPatch) -> dict[str, Measure]:
    """What MEASURES holds in this test."""

    def fail(bench: Bench) -> Findings:
        raise RuntimeError("no luck")

    found: dict[str, Measure] = {"good": lambda bench: FINDINGS, "bad": fail}
    monkeypatch.setattr(measuring, "MEASURES", found)
    return found


BENCH = Bench(server=None, rounds=5, quick=False)


@pytest.mark.once
def test_a_measure_that_fails_is_kept_as_failed_and_is_missing(measures: object, tmp_path: Path) -> None:
    store = Store({"PostgreSQL 15": Run(0)})
    kept: list[set[str]] = []

    def keep() -> None:
        store.write(tmp_path / "found.json")
        kept.append(set(Store.read(tmp_path / "found.json").runs["PostgreSQL 15"].measures))

    into = store.runs["PostgreSQL 15"]
    assert measuring.run(BENCH, into, ["bad", "good"], keep) == 1
    assert kept == [{"bad"}, {"bad", "good"}]  # after each, so that an interrupted run loses one at most
    assert into.measures["bad"].failed == "RuntimeError: no luck"
    assert report.rows_of("bad", into.measures["bad"]) == [Row("bad", "failed: RuntimeError: no luck")]
    wanted = options.parse(["--missing", f"--into={tmp_path / 'found.json'}"])._replace(only=["bad", "good", "new"])
    assert measuring.chosen(into, wanted) == ["bad", "new"]


@pytest.mark.slow
@pytest.mark.once
def test_a_measure_that_hangs_is_ended() -> None:
    # In a process of its own: the limit uses the alarm, which the tests' own limits use as well.
    program = (
        "import time; from benchmarks import measuring; from benchmarks.store import Run\n"
        "measuring.LIMIT = 1; measuring.MEASURES = {'long': lambda bench: time.sleep(60)}\n"
        "class Bench: rounds, quick = 1, False\n"
        "run = Run(0); measuring.run(Bench(), run, ['long'], lambda: None); print(run.measures['long'].failed)"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=50, cwd=CHECKOUT)
    assert ended.stdout == "TimeoutError: it took longer than 1 s\n"


@pytest.mark.once
def test_what_is_kept_reads_as_it_was_written(tmp_path: Path) -> None:
    a_store().write(tmp_path / "deep" / "found.json")
    read = Store.read(tmp_path / "deep" / "found.json")
    assert read.peers == PEERS
    assert read.runs["PostgreSQL 15, loaded"].load == 2
    kept = read.runs["PostgreSQL 15"].measures["one"]
    assert kept.findings.rows == FINDINGS.rows
    assert (kept.seconds, kept.settings, kept.failed) == (1.5, "5 rounds", "")
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["found.json"]
    assert Store.read(tmp_path / "nothing.json") == Store()


@pytest.mark.once
def test_the_page_has_each_run_and_marks_what_misses_its_target() -> None:
    page = report.page(a_store(), ["one"], ["one"], "curves.svg")
    lines = {line.split("|")[1].strip(): line for line in page.splitlines() if line.startswith("| ")}
    assert "| PostgreSQL 15 | PostgreSQL 15, loaded |" in page
    assert "## PostgreSQL 15, loaded" in page
    assert page.count("**0.50**") == 2  # in the table of targets; `waits` meets its own
    assert "**no**" in lines["puts"]
    assert "| yes " in lines["waits"]
    assert "![the curves](curves.svg)" in page
    assert "- third: pip install third: no such package" in page
    assert "not durable" in lines["other"]
    assert page.startswith("# Benchmarks\n")


@pytest.mark.once
def test_a_page_of_nothing_can_be_written() -> None:
    page = report.page(Store(), list(MEASURES), MAIN, None)
    assert "How cost grows" not in page
    assert "Beside the peers" not in page


@pytest.mark.slow
@pytest.mark.once
def test_the_curves_are_an_svg_without_a_background(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "out" / "curves.svg"
    assert plot.save({"PostgreSQL 15": FINDINGS, "PostgreSQL 18": FINDINGS}, path)
    root = xml.parse(path).getroot()
    assert root.tag.endswith("svg")
    text = path.read_text()
    assert plot.INK in text  # axes and words: readable on white and on black
    assert "fill: #ffffff" not in text
    assert not plot.save({}, tmp_path / "none.svg")
    assert not (tmp_path / "none.svg").exists()


@pytest.mark.once
def test_the_load_ends_with_its_block_and_with_its_process() -> None:
    with busy(2) as pids:
        assert len(pids) == 2
        assert all(is_running(pid) for pid in pids)
    assert not any(is_running(pid) for pid in pids)

    program = (
        "import time\nfrom benchmarks.load import busy\nwith busy(1) as p:\n print(*p, flush=True); time.sleep(60)"
    )
    holder = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, cwd=CHECKOUT)
    pid = int(holder.stdout.readline())
    assert is_running(pid)
    holder.send_signal(signal.SIGKILL)
    holder.communicate()
    eventually(lambda: not is_running(pid))


def is_running(pid: int) -> bool:
    """Whether there is such a process, other than one that has ended and was not waited for."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_the_backends_cpu_time_grows_with_their_work(
    db: psycopg.Connection, connect: Callable[[], psycopg.Connection]
) -> None:
    backend = connect()
    pid = backend.info.backend_pid
    if not Path(f"/proc/{pid}/schedstat").exists():
        pytest.skip("the server's processes are not on this machine")
    used = BackendTime(db)
    eventually(lambda: backend.execute("SELECT count(*) FROM generate_series(1, 100000)") and used.seconds() > 0.05)


@pytest.mark.once
def test_contenders_take_turns_and_ratios_are_within_a_round() -> None:
    order: list[str] = []
    figures = {"a": iter([10.0, 30.0, 20.0]), "b": iter([5.0, 10.0, 20.0])}

    def turn(name: str) -> Callable[[], float]:
        return lambda: order.append(name) or next(figures[name])

    ran = take_turns(3, {name: turn(name) for name in figures})
    assert "".join(order) == "abbaab"
    assert ran.median("a") == 20.0
    assert ran.ratio("a", "b") == 2.0  # of 2, 3 and 1


@pytest.mark.once
def test_every_measure_has_a_name_and_the_targets_are_among_them() -> None:
    files = {path.stem for path in (CHECKOUT / "benchmarks" / "measures").glob("[a-z]*.py")}
    assert {measure.__module__.rpartition(".")[2] for measure in MEASURES.values()} == files
    assert set(MAIN) <= set(MEASURES)
    assert {name.replace("-", "_") for name in MEASURES} == files


@pytest.mark.slow
@pytest.mark.once
@pytest.mark.parametrize("arguments", [["--only=latencies"], ["--missing"], ["--pg=tape"]])
def test_a_wrong_option_is_refused(arguments: list[str]) -> None:
    ended = run(*arguments)
    assert ended.returncode == 2
    assert "python -m benchmarks: " in ended.stderr
