"""Run another project's own tests against pgqueue: Celery's integration tests, kombu's, or pystalkd's.

    python tools/suites.py ../celery --backend pgqueue://localhost/test --broker redis://localhost --beside redis://localhost
    python tools/suites.py ../kombu --transport pgqueue://localhost/test --beside redis://localhost
    python tools/suites.py ../pystalkd --beanstalkd 127.0.0.1:11300 --beside 127.0.0.1:11301

The argument is a checkout of that project, which has to be there: nothing of theirs is copied. The tests run with the
checkout's code and the packages of this Python; the plugins of pytest that the tests need are installed into
build/suites. The last lines say how many passed, and each test that did not, with its reason. `--beside` runs the same
tests with another URL in place of pgqueue's, so that a failure of both can be told from one of pgqueue alone.

The exit code is 1 if a test failed with pgqueue that did not fail beside it.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

PLUGINS = Path(__file__).parent.parent / "build" / "suites"
NEEDED = ["pytest-rerunfailures", "pytest-order", "pytest-click"]
CELERY = ["t/integration/test_tasks.py", "t/integration/test_canvas.py", "t/integration/test_inspect.py"]

#: A test of Celery is left out if the URL of its result backend is not Redis's, when it uses a Redis beside it, for
#: example for the order of side effects. With a Redis there these tests run for any backend.
AS_REDIS = """
import os
class Url(str):
    def startswith(self, prefix, *rest):
        return prefix in ("redis", "redis://") or super().startswith(prefix, *rest)
def pytest_collection(session):
    import t.integration.conftest as theirs
    theirs.TEST_BACKEND = Url(theirs.TEST_BACKEND)
"""

#: kombu has a module for each of its transports, with subclasses of the tests that are common to all.
KOMBU = """
import os, kombu, pytest
from t.integration.common import BaseExchangeTypes, BaseMessage, BasePriority, BaseTimeToLive, BasicFunctionality
@pytest.fixture
def connection():
    return kombu.Connection(os.environ["SUITE_URL"])
@pytest.fixture
def invalid_connection():
    scheme = os.environ["SUITE_URL"].partition("://")[0]
    return kombu.Connection(f"{scheme}://localhost:12345", connect_timeout=1)
class test_Basic(BasicFunctionality):
    pass
class test_Exchanges(BaseExchangeTypes):
    pass
class test_Priority(BasePriority):
    PRIORITY_ORDER = os.environ.get("SUITE_PRIORITIES", "desc")
class test_Message(BaseMessage):
    pass
class test_TimeToLive(BaseTimeToLive):
    pass
"""


#: pystalkd's tests read the port from the command line as text, which their socket refuses.
PYSTALKD = """
import os
from pystalkd import Beanstalkd
host, _, port = os.environ["SUITE_URL"].rpartition(":")
Beanstalkd.DEFAULT_HOST, Beanstalkd.DEFAULT_PORT = host, int(port)
"""
HANGS = "not test_timedelta"  # it reserves from a tube that it does not watch; pystalkd's own list leaves it out


@dataclass(frozen=True)
class Outcome:
    state: str  # passed, failed, skipped, expected failure or unexpected pass
    reason: str


def main() -> int:
    options = parsed()
    install()
    kind = next((name for name in ("kombu", "pystalkd") if (options.project / name / "__init__.py").exists()), "celery")
    if kind == "kombu" and not options.transport:
        sys.exit("a checkout of kombu needs --transport, the URL of pgqueue as a broker")
    if kind == "celery" and not (options.backend or options.transport):
        sys.exit("a checkout of Celery needs --backend, --transport, or both")
    if kind == "pystalkd" and not options.beanstalkd:
        sys.exit("a checkout of pystalkd needs --beanstalkd, the address of a `pgqueue beanstalkd`")
    front = options.beanstalkd or options.transport
    ours = run(options, kind, front or options.broker, options.backend or options.broker)
    table(front or options.backend, ours)
    beside = dict[str, Outcome]()
    if options.beside:
        broker = options.beside if front else options.broker
        beside = run(options, kind, broker, options.beside if options.backend else options.broker)
        table(options.beside, beside)
    failed = [name for name, outcome in ours.items() if outcome.state == "failed"]
    alone = [name for name in failed if beside.get(name, ours[name]).state != "failed" or not options.beside]
    if options.beside:
        print(f"failed with pgqueue alone: {', '.join(alone) or 'none'}")
    return int(bool(alone))


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("project", type=Path, help="a checkout of Celery, kombu or pystalkd")
    parser.add_argument("--transport", help="the URL of pgqueue as a broker")
    parser.add_argument("--backend", help="the URL of pgqueue as a result backend")
    parser.add_argument("--beanstalkd", help="the address of a `pgqueue beanstalkd`, whose tubes are empty")
    parser.add_argument("--broker", default="redis://localhost", help="the other half, where only one is pgqueue's")
    parser.add_argument("--beside", help="a URL to run the same tests with")
    parser.add_argument("--as-redis", action="store_true", help="run also what Celery tests with Redis results alone")
    parser.add_argument("--only", help="as pytest's -k")
    parser.add_argument("tests", nargs="*", help="files in the checkout; default those of the integration tests")
    return parser.parse_intermixed_args()


def install() -> None:
    """Once: what the tests need beside this Python's packages, which stay as they are."""
    if not PLUGINS.exists():
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(PLUGINS), *NEEDED]
        subprocess.run(pip, check=True)


def run(options: argparse.Namespace, kind: str, broker: str, backend: str) -> dict[str, Outcome]:
    with tempfile.TemporaryDirectory() as folder:
        report, module = Path(folder, "report.xml"), Path(folder, "test_common.py")
        module.write_text(KOMBU)
        plugin = PYSTALKD if kind == "pystalkd" else AS_REDIS if options.as_redis else ""
        Path(folder, "suite_plugin.py").write_text(plugin)
        tests = options.tests or {"kombu": [str(module)], "pystalkd": ["test.py"], "celery": CELERY}[kind]
        command = [sys.executable, "-m", "pytest", "-p", "suite_plugin", "-p", "no:xdist", f"--junitxml={report}"]
        command += ["-p", "no:randomly", "-q", "--rootdir=.", "-o", "junit_family=xunit1", *tests]
        if kind == "kombu":
            command += ["-c", os.devnull, "-o", "python_classes=test_*", "--import-mode=importlib"]
        elif kind == "pystalkd":
            command += ["-c", os.devnull, "--import-mode=importlib"]
        else:
            command += ["-p", "celery.contrib.pytest", "-o", "asyncio_default_fixture_loop_scope=function"]
        if chosen := options.only or (HANGS if kind == "pystalkd" else None):
            command += ["-k", chosen]
        path = os.pathsep.join([str(options.project.resolve()), str(PLUGINS), folder])
        surroundings = {"TEST_BROKER": broker, "TEST_BACKEND": backend, "SUITE_URL": broker, "PYTHONPATH": path}
        subprocess.run(command, cwd=options.project, env={**os.environ, **surroundings})
        if not report.exists():
            sys.exit("pytest wrote no report: its output above says why")
        return outcomes(report)


def outcomes(report: Path) -> dict[str, Outcome]:
    found = dict[str, Outcome]()
    for case in ElementTree.parse(report).iter("testcase"):
        name = f"{case.get('classname', '').rpartition('.')[2]}::{case.get('name')}"
        outcome = Outcome("passed", "")
        for part in case:
            if part.tag in ("failure", "error"):
                message = part.get("message") or ""
                better = message.startswith("[XPASS(strict)]")  # the project expects its own failure
                outcome = Outcome("unexpected pass" if better else "failed", message)
            elif part.tag == "skipped":
                expected = "xfail" in (part.get("type") or "")
                outcome = Outcome("expected failure" if expected else "skipped", part.get("message") or "")
        found[name] = outcome
    return found


def table(url: str, found: dict[str, Outcome]) -> None:
    states = ("passed", "failed", "skipped", "expected failure", "unexpected pass")
    print(
        f"\n{url.rpartition('@')[2]}: " + ", ".join(f"{sum(o.state == s for o in found.values())} {s}" for s in states)
    )
    for name, outcome in found.items():
        if outcome.state != "passed":
            print(f"  {outcome.state:16}  {name}: {' '.join(outcome.reason.split())[:160]}")


if __name__ == "__main__":
    sys.exit(main())
