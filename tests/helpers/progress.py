"""How far a run is: what has run, what failed, and about how much time is left.

On a terminal it is one line that is written again; elsewhere, for example in the log of a CI, a line every 15 seconds.
Each failure has a line as soon as it happens. When no test has ended for a minute, a line names those that are running.
`pytest -v` and `pytest -q` report as pytest itself does.

The time that is left is estimated with `durations.json` beside this file: how many seconds the quick tests of each file
took, how many these are, and the same of its slow tests. A test counts as the mean of its file, and one of a file that
is not there as the mean of all. `pytest --all --durations-into tests/helpers/durations.json` measures anew; of a run
of fewer tests it takes these, and keeps the others.
"""

from __future__ import annotations

import json
import threading
import time
from collections import defaultdict
from pathlib import Path
from statistics import fmean

import pytest

Known = dict[str, dict[str, tuple[float, int]]]  # file: {"quick" or "slow": (seconds, tests)}

DURATIONS = Path(__file__).with_name("durations.json")
PAUSE = {True: 0.2, False: 15.0}  # seconds between two reports: on a terminal, and elsewhere
SILENCE = 60.0  # seconds in which no test has ended, until a line says what is running


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("pgqueue").addoption(
        "--durations-into", type=Path, metavar="FILE", help="write how long the tests of each file took"
    )


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if hasattr(config, "workerinput") or reporter is None:
        return
    if config.option.verbose == 0 and not config.option.collectonly:
        config.pluginmanager.register(Progress(reporter, weights(config)), "pgqueue-progress")
    if path := config.getoption("--durations-into"):
        config.pluginmanager.register(Durations(path), "pgqueue-durations")


def weights(config: pytest.Config) -> dict[str, float]:
    """How many seconds a test of each file takes, among those that this run chooses."""
    known: Known = json.loads(DURATIONS.read_text())
    means = dict[str, float]()
    for file, of in known.items():
        if chosen := [of[kind] for kind in kinds(config) if kind in of]:
            means[file] = sum(seconds for seconds, _ in chosen) / sum(tests for _, tests in chosen)
    return means


def kinds(config: pytest.Config) -> tuple[str, ...]:
    expression = config.option.markexpr
    if expression.startswith("slow"):
        return ("slow",)
    return ("quick", "slow") if expression or config.getoption("--all", default=False) else ("quick",)


class Progress:
    """Replaces pytest's dots."""

    def __init__(self, reporter: pytest.TerminalReporter, weights: dict[str, float]) -> None:
        self._reporter = reporter
        self._weights = weights
        self._mean = fmean(weights.values() or [1.0])
        self._terminal = bool(reporter.isatty)
        self._total = self._done = self._failed = 0
        self._weight = self._passed_weight = 0.0
        self._began = self._shown = self._heard = time.monotonic()
        self._running = dict[str, float]()  # tests, each with the time at which it began
        self._over = threading.Event()

    def pytest_sessionstart(self) -> None:
        threading.Thread(target=self._listen, name="pgqueue-progress", daemon=True).start()

    def _listen(self) -> None:
        while not self._over.wait(SILENCE / 10):
            if self._running and time.monotonic() - self._heard >= SILENCE:
                self._name_the_running()

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        if session.items:  # under xdist the items are elsewhere
            self._expect([item.nodeid for item in session.items])

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: list[str]) -> None:
        self._expect(ids)

    def _expect(self, ids: list[str]) -> None:
        if self._done:
            return  # a process of pytest-xdist has taken the place of one that ended
        self._total, self._weight = len(ids), sum(map(self._weigh, ids))
        self._began = time.monotonic()

    def _weigh(self, id: str) -> float:
        return self._weights.get(id.partition("::")[0], self._mean)

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_teststatus(self, report: pytest.TestReport) -> tuple[str, str, str] | None:
        """No dots: neither letter nor word for pytest's own report."""
        if report.passed and not hasattr(report, "wasxfail"):
            return ("passed" if report.when == "call" else "", "", "")
        if report.failed:
            return ("failed" if report.when == "call" else "error", "", "")
        return ("skipped", "", "") if report.skipped else None

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._running[nodeid] = time.monotonic()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._failed += 1
            self._line(f"{'ERROR' if report.when in ('setup', 'teardown') else 'FAILED'} {report.nodeid}", red=True)
        if report.when in ("teardown", "???"):  # the latter of pytest-xdist: its process has ended
            self._heard = time.monotonic()
            self._running.pop(report.nodeid, None)
            self._done += 1
            self._passed_weight += self._weigh(report.nodeid)
        if time.monotonic() - self._shown >= PAUSE[self._terminal]:
            self._show()

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self) -> None:
        self._over.set()
        if self._total:
            self._show()
            self._reporter.ensure_newline()

    def _show(self) -> None:
        self._shown = time.monotonic()
        share = self._passed_weight / self._weight if self._weight else 1.0
        failed = f", {self._failed} failed" if self._failed else ""
        line = f"{share:4.0%}  {self._done:,} of {self._total:,} tests{failed}{self._left(share)}"
        if self._terminal:
            self._reporter.rewrite(line, erase=True)
        else:
            self._line(line)

    def _name_the_running(self) -> None:
        self._heard = now = time.monotonic()
        running = ", ".join(f"{test} ({clock(now - began)})" for test, began in list(self._running.items()))
        self._line(f"no test has ended for {SILENCE:.0f} s; running: {running}")

    def _line(self, text: str, **markup: bool) -> None:
        self._erase()
        self._reporter.write_line(text, **markup)
        self._reporter.flush()  # a log that is followed should say it now

    def _left(self, share: float) -> str:
        took = self._shown - self._began
        if share < 0.02 or self._done == self._total:
            return f"  {clock(took)}"
        return f"  {clock(took)}, about {clock(took * (1 - share) / share)} left"

    def _erase(self) -> None:
        if self._terminal:
            self._reporter.rewrite("", erase=True)
            self._reporter._tw.write("\r")


def clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"


class Durations:
    """Writes what Progress reads."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seconds = defaultdict[tuple[str, str], float](float)
        self._tests = defaultdict[tuple[str, str], set[str]](set)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        which = report.nodeid.partition("::")[0], "slow" if "slow" in report.keywords else "quick"
        self._seconds[which] += report.duration
        self._tests[which].add(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        known: Known = json.loads(self._path.read_text()) if self._path.exists() else {}
        for (file, kind), tests in self._tests.items():
            known.setdefault(file, {})[kind] = (round(self._seconds[file, kind], 2), len(tests))
        lines = [f"{json.dumps(file)}: {json.dumps(known[file])}" for file in sorted(known) if Path(file).exists()]
        self._path.write_text("{\n" + ",\n".join(lines) + "\n}\n")
