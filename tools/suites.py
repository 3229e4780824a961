"""Run another project's own tests against pgqueue: Celery's integration tests, kombu's, or Dramatiq's.

    python tools/suites.py ../celery --backend pgqueue://localhost/test --broker redis://localhost --beside redis://localhost
    python tools/suites.py ../kombu --transport pgqueue://localhost/test --beside redis://localhost
    python tools/suites.py ../dramatiq --transport postgresql://localhost/test --beside redis://localhost

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
NEEDED = ["pytest-rerunfailures", "pytest-order", "pytest-click", "pika"]
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

#: Dramatiq's tests take their brokers from fixtures: here all of them are pgqueue's, or Redis's, also in place of the
#: broker in memory. That one raises the error of a dead letter when it is joined, hence `joined`.
DRAMATIQ = """
import os, dramatiq, pytest
from dramatiq import Worker
from dramatiq.middleware import Middleware
URL = os.environ["SUITE_URL"]
if URL.startswith("redis"):
    import redis
    from dramatiq.brokers.redis import RedisBroker as Broker
    from dramatiq.rate_limits.backends import RedisBackend as Limits
    from dramatiq.results.backends import RedisBackend as Results
    def emptied():
        redis.Redis.from_url(URL).flushall()
else:
    import psycopg
    from pgqueue.contrib.dramatiq import PgqueueBroker as Broker
    from pgqueue.contrib.dramatiq import PgqueueRateLimiterBackend as Limits
    from pgqueue.contrib.dramatiq import PgqueueResultBackend as Results
    def emptied():
        with psycopg.connect(URL) as conn:
            conn.execute("DELETE FROM pgqueue.status")
            conn.execute("SELECT pgqueue.delete_queue(name => name, force => true) FROM pgqueue.queues")
class Dead(Middleware):
    def __init__(self):
        self.errors, self.messages = [], []
    def before_nack(self, broker, message):
        self.errors.append(message._exception or Exception("rejected"))
        self.messages.append(message)
def made():
    emptied()
    broker, dead = Broker(url=URL), Dead()
    broker.add_middleware(dead)
    broker.emit_after("process_boot")
    dramatiq.set_broker(broker)
    return broker, dead
def worked(broker, **options):
    worker = Worker(broker, worker_threads=32, **options)
    worker.start()
    yield worker
    worker.stop()
@pytest.fixture
def redis_broker():
    broker, _ = made()
    yield broker
    broker.close()
@pytest.fixture
def rabbitmq_broker():
    broker, _ = made()
    join = broker.join
    broker.join = lambda queue_name, *successes, timeout=None, **idle: join(queue_name, timeout=timeout)
    yield broker
    broker.close()
@pytest.fixture
def stub_broker(request):
    broker, dead = made()
    if "leak" in request.node.name:  # it counts errors that are held
        broker.middleware.remove(dead)
    join, broker.dead_letters = broker.join, dead.messages
    def joined(queue_name, *, timeout=None, fail_fast=True):
        join(queue_name, interval=10, timeout=timeout or 60_000)
        if fail_fast and dead.errors:
            raise dead.errors[0] from None
    broker.join = joined
    yield broker
    broker.close()
@pytest.fixture
def redis_worker(redis_broker):
    yield from worked(redis_broker)
@pytest.fixture
def rabbitmq_worker(rabbitmq_broker):
    yield from worked(rabbitmq_broker)
@pytest.fixture
def stub_worker(stub_broker):
    yield from worked(stub_broker, worker_timeout=100)
@pytest.fixture
def result_backend():
    emptied()
    return Results(url=URL)
redis_result_backend = stub_result_backend = result_backend
@pytest.fixture
def result_backends(result_backend):
    return {"redis": result_backend, "stub": result_backend}
@pytest.fixture
def rate_limiter_backend():
    emptied()
    return Limits(url=URL)
redis_rate_limiter_backend = stub_rate_limiter_backend = rate_limiter_backend
@pytest.fixture
def rate_limiter_backends(rate_limiter_backend):
    return {"redis": rate_limiter_backend, "stub": rate_limiter_backend}
"""
DRAMATIQ_TESTS = [
    *("test_redis", "test_rabbitmq", "test_broker", "test_worker", "test_actors", "test_generic_actors"),
    *("test_callbacks", "test_composition", "test_results", "test_barrier", "test_bucket_rate_limiter"),
    *("test_concurrent_rate_limiter", "test_window_rate_limiter", "middleware.test_asyncio"),
    *("middleware.test_retries", "middleware.test_shutdown", "middleware.test_threading", "middleware.test_time_limit"),
]


@dataclass(frozen=True)
class Outcome:
    state: str  # passed, failed, skipped, expected failure or unexpected pass
    reason: str


def main() -> int:
    options = parsed()
    install()
    kind = next((kind for kind in ("kombu", "dramatiq") if (options.project / kind / "__init__.py").exists()), "celery")
    if kind != "celery" and not options.transport:
        sys.exit(f"a checkout of {kind} needs --transport, the URL of pgqueue as a broker")
    if kind == "celery" and not (options.backend or options.transport):
        sys.exit("a checkout of Celery needs --backend, --transport, or both")
    ours = run(options, kind, options.transport or options.broker, options.backend or options.broker)
    table(options.transport or options.backend, ours)
    beside = dict[str, Outcome]()
    if options.beside:
        broker = options.beside if options.transport else options.broker
        beside = run(options, kind, broker, options.beside if options.backend else options.broker)
        table(options.beside, beside)
    failed = [name for name, outcome in ours.items() if outcome.state == "failed"]
    alone = [name for name in failed if beside.get(name, ours[name]).state != "failed" or not options.beside]
    if options.beside:
        print(f"failed with pgqueue alone: {', '.join(alone) or 'none'}")
    return int(bool(alone))


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("project", type=Path, help="a checkout of Celery, kombu or Dramatiq")
    parser.add_argument("--transport", help="the URL of pgqueue as a broker")
    parser.add_argument("--backend", help="the URL of pgqueue as a result backend")
    parser.add_argument("--broker", default="redis://localhost", help="the other half, where only one is pgqueue's")
    parser.add_argument("--beside", help="a URL to run the same tests with")
    parser.add_argument("--as-redis", action="store_true", help="run also what Celery tests with Redis results alone")
    parser.add_argument("--only", help="as pytest's -k")
    parser.add_argument("tests", nargs="*", help="files in the checkout, or modules of Dramatiq's tests; default all")
    return parser.parse_intermixed_args()


def install() -> None:
    """Once: what the tests need beside this Python's packages, which stay as they are."""
    if not (PLUGINS / "pika").exists():  # the newest of them
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(PLUGINS), *NEEDED]
        subprocess.run(pip, check=True)


def run(options: argparse.Namespace, kind: str, broker: str, backend: str) -> dict[str, Outcome]:
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.xml")
        Path(folder, "suite_plugin.py").write_text(AS_REDIS if options.as_redis else "")
        tests = written(Path(folder), kind, options.tests)
        command = [sys.executable, "-m", "pytest", "-p", "suite_plugin", "-p", "no:xdist", f"--junitxml={report}"]
        command += ["-p", "no:randomly", "-q", "--rootdir=.", "-o", "junit_family=xunit1", *tests]
        if kind == "kombu":
            command += ["-c", os.devnull, "-o", "python_classes=test_*", "--import-mode=importlib"]
        elif kind == "dramatiq":
            command += ["-c", os.devnull, "--import-mode=importlib", "--timeout=60"]
        else:
            command += ["-p", "celery.contrib.pytest", "-o", "asyncio_default_fixture_loop_scope=function"]
        if options.only:
            command += ["-k", options.only]
        path = os.pathsep.join([str(options.project.resolve()), str(PLUGINS), folder])
        surroundings = {"TEST_BROKER": broker, "TEST_BACKEND": backend, "SUITE_URL": broker, "PYTHONPATH": path}
        subprocess.run(command, cwd=options.project, env={**os.environ, **surroundings})
        if not report.exists():
            sys.exit("pytest wrote no report: its output above says why")
        return outcomes(report)


def written(folder: Path, kind: str, chosen: list[str]) -> list[str]:
    """The files to run: those of the checkout, or modules that import its tests, beside fixtures of our own."""
    if kind == "celery":
        return chosen or CELERY
    if kind == "kombu":
        texts = {"test_common": KOMBU}
    else:
        names = [name.removeprefix("tests.") for name in chosen or DRAMATIQ_TESTS]
        texts = {
            name.rpartition(".")[2]: f"from suite_fixtures import *\nfrom tests.{name} import *\n" for name in names
        }
        Path(folder, "suite_fixtures.py").write_text(DRAMATIQ)
        Path(folder, "suite_plugin.py").write_text('import pytest\npytest.register_assert_rewrite("tests")\n')
    for name, text in texts.items():
        Path(folder, f"{name}.py").write_text(text)
    return [str(Path(folder, f"{name}.py")) for name in texts]


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
