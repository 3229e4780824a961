"""Fixtures that every test may use: one server a session, one fresh database a test.

A database of its own is the cheapest thing that separates tests here: NOTIFY and advisory locks reach across
schemas, and a rolled-back transaction would hide both from the other connections. A clone of a migrated
template takes about 60 ms, so tests of plain SQL may as well share one and delete.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path
from typing import Any

import hypothesis
import psycopg
import pytest
from commands import Commands
from lending import Lender
from processes import Program, programs
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from servers import CHOICES, Server, Unavailable, check, serve, system_binaries
from shells import Shell

import pgqueue
from pgqueue import migrate
from pgqueue._engine import outages

hypothesis.settings.register_profile(
    "any machine",
    deadline=None,
    suppress_health_check=list(hypothesis.HealthCheck),  # a slow one is not ill
)
hypothesis.settings.load_profile("any machine")
pytest_plugins = ["surroundings", "rewriting", "selection", "limits", "dealing", "progress"]  # in tests/helpers

Connect = Callable[..., psycopg.Connection]

#: How much the fault tests do: a little by default, as much as one likes by option, for example
#: `pytest tests/faults/test_handoffs.py --handoffs=20000`, or `pytest tests/faults/test_kills.py --kills=50`.
SIZES = {
    "handoffs": (2000, "tasks handed over in test_handoffs"),
    "waiting": (20, "clients that wait for one queue in test_turns_stress"),
    "kills": (5, "processes killed in test_kills"),
    "kill_tasks": (5000, "tasks during these kills"),
    "members": (2000, "tasks of the batch in test_flows"),
    "step_kills": (5, "processes killed in test_steps"),
    "clock_kills": (4, "clocks killed in test_schedule_faults"),
    "backlog": (100_000, "tasks that lie there in test_plans"),
    "limited_tasks": (600, "tasks in test_limits_stress"),
    "limited_kills": (2, "workers killed in test_limits_stress"),
    "calls": (2000, "random calls in test_rights_fuzz"),
    "rate_seconds": (3, "seconds of the rate in test_limits_stress"),
}

SERVER_NOTE = pytest.StashKey[str]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("pgqueue")
    group.addoption("--pg", default="auto", metavar="SERVER", help=f"the PostgreSQL to test with: {CHOICES}")
    for name, (default, what) in SIZES.items():
        group.addoption(f"--{name.replace('_', '-')}", type=int, default=default, help=what)


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):  # under xdist, the process that starts the others
        try:
            check(config.getoption("--pg"))
        except Unavailable as error:
            raise pytest.UsageError(str(error)) from None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Collect no garbage meanwhile: that takes a seventh of the time, and frees 18 of 260 MB."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """The tests stay to the end of the run: no collection of garbage looks at them again."""
    gc.collect()
    gc.freeze()


def pytest_report_header() -> str:
    """An installed copy hides the checkout's code: say which of them is under test."""
    return f"pgqueue: {version('pgqueue-core')} in {Path(pgqueue.__path__[0]).parent}"


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: object) -> None:
    """Under xdist the workers know the server."""
    if note := getattr(node, "workeroutput", {}).get("pgqueue_server"):
        node.config.stash[SERVER_NOTE] = note  # type: ignore[attr-defined]  # xdist has no types


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if note := config.stash.get(SERVER_NOTE, None):
        terminalreporter.write_line(f"database: {note}")


@pytest.fixture(scope="session")
def pg_server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """The server that `--pg` chose. Under xdist, each worker has its own, or its own databases."""
    with serve(request.config.getoption("--pg")) as server:
        note = f"{server.kind}, PostgreSQL {server.version()}"
        request.config.stash[SERVER_NOTE] = note
        if hasattr(request.config, "workeroutput"):
            request.config.workeroutput["pgqueue_server"] = note
        yield server


@pytest.fixture(scope="session")
def pg_template(pg_server: Server) -> Iterator[str]:
    """The name of a migrated database to clone."""
    name = pg_server.create()
    migrate.up(pg_server.dsn(name))
    yield name
    pg_server.drop(name)


@pytest.fixture(scope="session")
def lender(pg_server: Server, pg_template: str) -> Iterator[Lender]:
    """Lends databases with the schema in them."""
    with contextlib.closing(Lender(pg_server, pg_template)) as lender:
        yield lender


@pytest.fixture
def dsn(pg_server: Server, lender: Lender) -> Iterator[str]:
    """A database with the schema in it, which nothing can tell from a new one."""
    with lender.lent() as name:
        yield pg_server.dsn(name)


@pytest.fixture
def empty_dsn(pg_server: Server) -> Iterator[str]:
    """A fresh database without the schema."""
    name = pg_server.create()
    yield pg_server.dsn(name)
    pg_server.drop(name)


@pytest.fixture
def dsns(pg_server: Server, lender: Lender, without_password: Callable[[str], str]) -> Iterator[list[str]]:
    """Three servers of a cluster: databases with the schema, without numbers, by DSNs without a password."""
    with contextlib.ExitStack() as stack:
        yield [without_password(pg_server.dsn(stack.enter_context(lender.lent()))) for _ in range(3)]


@pytest.fixture
def without_password(tmp_path: Path) -> Callable[[str], str]:
    """Makes a DSN without a password of one with it: libpq then reads it in a file."""

    def make(dsn: str) -> str:
        known = conninfo_to_dict(dsn)
        if password := known.pop("password", None):
            file = tmp_path / "pgpass"
            file.write_text(f"*:*:*:*:{password}\n")
            file.chmod(0o600)
            known["passfile"] = str(file)
        return make_conninfo("", **known)

    return make


@pytest.fixture
def db(dsn: str, lender: Lender) -> psycopg.Connection:
    """A connection in autocommit to the test's database."""
    return lender.connection(str(conninfo_to_dict(dsn)["dbname"]))


@pytest.fixture
def connect(dsn: str) -> Iterator[Connect]:
    """Makes more connections in autocommit to the test's database."""
    with contextlib.ExitStack() as stack:

        def make(**options: Any) -> psycopg.Connection:
            return stack.enter_context(psycopg.connect(dsn, **({"autocommit": True} | options)))

        yield make


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    """Another thread, for a call that waits."""
    with ThreadPoolExecutor(1) as pool:
        yield pool


@pytest.fixture
def stranger(dsn: str, db: psycopg.Connection) -> Iterator[Connect]:
    """Makes connections of a role that may connect to the test's database, and nothing else."""
    role = f"stranger_{uuid.uuid4().hex[:12]}"
    db.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'stranger'")
    with contextlib.ExitStack() as stack:

        def make() -> psycopg.Connection:
            return stack.enter_context(psycopg.connect(dsn, user=role, password="stranger", autocommit=True))

        yield make
    db.execute(f"DROP ROLE {role}")


@pytest.fixture(scope="module")
def shared(pg_server: Server, lender: Lender) -> Iterator[str]:
    """A database for all tests of a file, which leave it as it was."""
    with lender.lent() as name:
        yield pg_server.dsn(name)


@pytest.fixture(scope="session")
def own_bindir(pg_server: Server, request: pytest.FixtureRequest) -> Path | None:
    """PostgreSQL's programs for a server that a test starts for itself; None: the embedded ones."""
    if pg_server.kind in ("system", "citus"):
        _, _, given = request.config.getoption("--pg").partition(":")
        return Path(given) if given else system_binaries()[0]
    if pg_server.kind != "embedded":
        pytest.skip(f"a server of kind {pg_server.kind} is not ours to start or to stop")
    return None


@pytest.fixture
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """One test at a time has this: those that load the machine, and those of a bound in seconds that suffer from it."""
    with (tmp_path_factory.getbasetemp().parent / "undisturbed").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@pytest.fixture
def swept(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """For a test that cuts frames off: what they held is freed with it, and complains in no later test.

    psycopg logs errors, which refer to the frames.
    """
    yield
    caplog.get_records("call").clear()
    gc.collect()


# --- clients


@pytest.fixture(params=["async", "sync"])
async def shell(request: pytest.FixtureRequest, dsn: str) -> AsyncIterator[Shell]:
    """Makes clients of one shell. A test that uses it runs once on each."""
    threads = ThreadPoolExecutor(64, thread_name_prefix="test")
    async with contextlib.AsyncExitStack() as stack:
        yield Shell(request.param, dsn, stack, threads)
    threads.shutdown()


@pytest.fixture(autouse=True)
def unhurried(request: pytest.FixtureRequest) -> Iterator[None]:
    """A call of a cluster waits for a server that takes long to connect. On a busy machine it would skip that.

    The fixture monkeypatch would begin here for every test, and end behind the clients that a test has.
    """
    with pytest.MonkeyPatch.context() as patch:
        if "hasty" not in request.fixturenames:
            patch.setattr(outages, "MOVES_ON", 30)
        yield


@pytest.fixture
def hasty() -> None:
    """A call of a cluster moves on after 0.3 s, as for users. For tests of just that."""


@pytest.fixture
def client(shell: Shell) -> Any:
    return shell.client()


@pytest.fixture
def queue(client: Any) -> Any:
    return client.queue("q")


@pytest.fixture
async def transaction(shell: Shell) -> Any:
    """A connection of the caller's, in a transaction as soon as it is used."""
    return await shell.connection()


@pytest.fixture
def blocking(dsn: str) -> Iterator[Callable[..., pgqueue.Client]]:
    """Makes blocking clients, for tests about one shell only."""
    with contextlib.ExitStack() as stack:

        def make(**options: Any) -> pgqueue.Client:
            return stack.enter_context(pgqueue.Client(dsn, **({"poll": None} | options)))

        yield make


@pytest.fixture
async def awaiting(dsn: str) -> AsyncIterator[Callable[..., pgqueue.AsyncClient]]:
    """Makes awaiting clients, for tests about one shell only."""
    async with contextlib.AsyncExitStack() as stack:

        def make(**options: Any) -> pgqueue.AsyncClient:
            client = pgqueue.AsyncClient(dsn, **({"poll": None} | options))
            stack.push_async_callback(client.close)
            return client

        yield make


# --- processes


@pytest.fixture
def start() -> Iterator[Callable[..., Program]]:
    """Starts the programs of tests/helpers/programs/, and ends them after the test."""
    with programs() as make:
        yield make


@pytest.fixture
def command(dsn: str) -> Commands:
    """The command line on the test's database."""
    return Commands(dsn)


@pytest.fixture
def size(request: pytest.FixtureRequest) -> dict[str, int]:
    """The sizes by name, for `size["handoffs"]`."""
    return {name: request.config.getoption(name) for name in SIZES}
