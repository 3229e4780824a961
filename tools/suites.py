"""Run another project's own tests against pgqueue: of Celery, kombu, Django, Dramatiq, greenstalk or pystalkd.

    python tools/suites.py ../kombu --transport pgqueue://localhost/test --beside redis://localhost
    python tools/suites.py ../celery --transport pgqueue://localhost/test --backend pgqueue://localhost/test \\
        --redis redis://localhost:6379 --beside redis://localhost
    python tools/suites.py ../django --database postgresql://localhost/test
    python tools/suites.py ../dramatiq --transport postgresql://localhost/test --beside redis://localhost
    python tools/suites.py ../greenstalk --database postgresql://localhost/postgres --beside /usr/bin/beanstalkd
    python tools/suites.py ../pystalkd --beanstalkd 127.0.0.1:11300 --beside 127.0.0.1:11301

The first argument is a checkout of that project, or its unpacked sdist: nothing of theirs is copied. The tests run with
the checkout's code and the packages of this Python; other packages that the tests need are installed into build/suites.
Each file of Celery has a run of its own, and a worker with it. The last lines say how many tests passed, and each that
did not, with its reason. `--beside` runs the same tests with another URL in place of pgqueue's, so that a failure of
both can be told from one of pgqueue alone. `--redis` names a Redis for the tests of Celery that use one to look at the
effects of their tasks; without it they are skipped.

Give each run an empty database: messages that a failed test leaves behind fail others. Dramatiq's tests delete all
queues of their database, and all keys of a Redis. A URL for kombu's tests has no `?`, since kombu cannot read one in a
list of URLs.

The exit code is 1 if a test failed with pgqueue that did not fail beside it.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit
from xml.etree import ElementTree

PLUGINS = Path(__file__).parent.parent / "build" / "suites"
NEEDED = ["pytest-rerunfailures", "pytest-order", "pytest-click", "pika"]
OURS = Path(__file__).parent / "suiteplugins"

#: Celery's tests of its own backends, and of signed messages, which need one more package.
LEFT_OUT = ("backend.py", "cache_backend.py", "database_backend.py", "redis_backend.py", "security.py")

#: Dramatiq's tests of its brokers, results, rate limiters, actors and middleware. Those of its programs have no broker.
DRAMATIQ = [
    *("test_redis", "test_rabbitmq", "test_broker", "test_worker", "test_actors", "test_generic_actors"),
    *("test_callbacks", "test_composition", "test_results", "test_barrier", "test_bucket_rate_limiter"),
    *("test_concurrent_rate_limiter", "test_window_rate_limiter", "middleware/test_asyncio"),
    *("middleware/test_retries", "middleware/test_shutdown", "middleware/test_threading", "middleware/test_time_limit"),
]

#: A test of pystalkd that waits without end: it reserves from a tube that it does not watch.
HANGS = "test.py::TestBeanstalkd::test_timedelta"


@dataclass(frozen=True)
class Outcome:
    state: str  # passed, failed, skipped, expected failure or unexpected pass
    reason: str


def main() -> int:
    options = parsed()
    install()
    kind = kind_of(options)
    front = options.transport or options.database or options.beanstalkd
    ours = run(options, kind, front or options.broker, options.backend or options.broker)
    table(front or options.backend, ours)
    beside = dict[str, Outcome]()
    if options.beside:
        broker = options.beside if front else options.broker
        beside = run(options, kind, broker, options.beside if options.backend else options.broker)
        table(options.beside, beside)
    failed = [name for name, outcome in ours.items() if outcome.state == "failed"]
    alone = [name for name in failed if name not in beside or beside[name].state != "failed"]
    if options.beside:
        print(f"failed with pgqueue alone: {', '.join(alone) or 'none'}")
    return int(bool(alone))


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("project", type=Path, help="a checkout of one of these projects")
    parser.add_argument("--transport", help="the URL of pgqueue as a broker, of Celery, kombu or Dramatiq")
    parser.add_argument("--backend", help="the URL of pgqueue as a result backend")
    parser.add_argument("--database", help="for Django and greenstalk: a DSN, whose role can create databases")
    parser.add_argument("--beanstalkd", help="for pystalkd: the HOST:PORT of a `pgqueue beanstalkd` with empty tubes")
    parser.add_argument("--broker", default="redis://localhost", help="the other half, where only one is pgqueue's")
    parser.add_argument("--beside", help="a URL to run the same tests with")
    parser.add_argument("--redis", help="a Redis, to run also what Celery tests with Redis results alone")
    parser.add_argument("--only", help="as pytest's -k")
    parser.add_argument("tests", nargs="*", help="files in the checkout; default all that test what pgqueue replaces")
    return parser.parse_intermixed_args()


def kind_of(options: argparse.Namespace) -> str:
    """The project that is checked out there. Exits with a message if an option that it needs is missing."""
    needs = {
        "celery": ["transport", "backend"],
        "kombu": ["transport"],
        "django": ["database"],
        "dramatiq": ["transport"],
        "greenstalk": ["database"],
        "pystalkd": ["beanstalkd"],
    }
    folders = (options.project, options.project / "src")
    kind = next((name for name in needs for folder in folders if (folder / name / "__init__.py").exists()), None)
    if kind is None:
        sys.exit(f"{options.project} is not a checkout of Celery, kombu, Django, Dramatiq, greenstalk or pystalkd")
    if not any(getattr(options, name) for name in needs[kind]):
        sys.exit(f"a checkout of {kind} needs " + " or ".join(f"--{name}" for name in needs[kind]))
    return kind


def install() -> None:
    """Once: the packages that the tests need beside this Python's, which stay unchanged."""
    if not (PLUGINS / "pika").exists():  # the last that NEEDED got
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--upgrade", "--target", str(PLUGINS)]
        subprocess.run([*pip, *NEEDED], check=True)


def run(options: argparse.Namespace, kind: str, broker: str, backend: str) -> dict[str, Outcome]:
    """The outcomes of all tests, by their names."""
    surroundings = {"TEST_BROKER": broker, "TEST_BACKEND": backend, "SUITE_URL": broker}
    surroundings["WORKER_LOGLEVEL"] = "INFO"  # as in Celery's tox.ini; its tests read the worker's log
    project = options.project.resolve()
    surroundings["PYTHONPATH"] = os.pathsep.join(map(str, (project, project / "src", PLUGINS, OURS)))
    if options.redis:
        redis = urlsplit(options.redis)
        surroundings |= {"REDIS_HOST": redis.hostname or "localhost", "REDIS_PORT": str(redis.port or 6379)}
    found = dict[str, Outcome]()
    for folder, arguments in runs(options, kind):
        if options.only:
            arguments += ["-k", options.only]
        with tempfile.TemporaryDirectory() as place:
            report = Path(place, "report.xml")
            command = [sys.executable, "-m", "pytest", "-q", f"--junitxml={report}", "-o", "junit_family=xunit1"]
            command += ["-p", "no:xdist", "-p", "no:randomly", "--rootdir=.", *arguments]
            subprocess.run(command, cwd=folder, env={**os.environ, **surroundings})
            if not report.exists():
                sys.exit("pytest wrote no report: its output above says why")
            found |= outcomes(report)
    return found


def runs(options: argparse.Namespace, kind: str) -> Iterator[tuple[Path, list[str]]]:
    """The runs of pytest: where, and its arguments. One for each file of Celery, whose worker serves one session."""
    project = options.project
    alone = ["-c", os.devnull, "--import-mode=importlib"]  # without the settings in the checkout
    if kind == "kombu":
        yield project, [*alone, "-o", "python_classes=test_*", *(options.tests or [str(OURS / "of_kombu.py")])]
    elif kind == "dramatiq":
        tests = options.tests or [f"tests/{name}.py" for name in DRAMATIQ]
        yield project, [*alone, "-p", "of_dramatiq", "--noconftest", "--timeout=60", *tests]
    elif kind == "greenstalk":
        yield project, [*alone, "-p", "of_greenstalk", *(options.tests or ["tests"])]
    elif kind == "pystalkd":
        yield project, [*alone, "-p", "of_pystalkd", f"--deselect={HANGS}", *(options.tests or ["test.py"])]
    elif kind == "django":
        yield project / "tests", ["-c", os.devnull, "-p", "of_django", *(options.tests or ["tasks"])]
    else:
        folder = Path("t", "integration")
        files = sorted(path.name for path in (project / folder).glob("test_*.py"))
        wanted = [str(folder / name) for name in files if name.removeprefix("test_") not in LEFT_OUT]
        for test in options.tests or wanted:
            more = ["-p", "celery.contrib.pytest", "-o", "asyncio_default_fixture_loop_scope=function"]
            yield project, ["-p", "of_celery", *more, test]


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
