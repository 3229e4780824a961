"""The servers of a cluster, the load over them, and what happens to them: by the commands that an operator types."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from psycopg.types.json import Jsonb

from ..crew import Crew, Way
from ..journal import Life
from ..ledger import AFTER, Proof, Tables, Window, prove
from ..servers import Cluster, folder
from . import measures
from .programs import CONTROL, PRODUCERS, ROLES

N_SERVERS = 3
JOINING = 4  # the number of the one that joins, and leaves again
AWAY = (2, 1)  # those that refuse connections; 1 is the home server
SILENT = 3  # the one that does not answer them
AT_WORK_WITHIN = 60.0  # seconds for all processes to complete a first step
BACK_WITHIN = 30.0  # seconds for all of them to complete a step after a change
MOVED_WITHIN = 60.0  # seconds; tasks that are taken stay, so a move is repeated
DRAINED_WITHIN = 60.0  # seconds from the end of the producers


@dataclass
class Scene:
    """What there is, and what has happened so far.

    Attributes:
        servers: by number.
        absent: which server refused connections or was silent, and when.
    """

    folder: Path
    bindir: Path | None
    stack: ExitStack
    seconds: float
    servers: dict[int, Cluster] = field(default_factory=dict)
    windows: list[Window] = field(default_factory=list)
    absent: list[tuple[int, Window]] = field(default_factory=list)

    def start(self, number: int) -> Cluster:
        """Start a server, which has no schema yet."""
        root = self.folder / f"server-{number}"
        root.mkdir()
        root.chmod(0o711)
        server = Cluster(root, self.bindir, fill=False)
        self.stack.callback(server.close)
        server.start()
        self.servers[number] = server
        return server

    def command(self, *words: str, may_fail: bool = False) -> bool:
        """`pgqueue cluster` at the home server. Whether its exit code was 0."""
        home = self.servers[1].dsn
        done = subprocess.run(
            [sys.executable, "-m", "pgqueue", "--dsn", home, "cluster", *words], capture_output=True, text=True
        )
        if done.returncode and not may_fail:
            raise RuntimeError(f"cluster {' '.join(words)}: {done.stdout}{done.stderr}")
        return not done.returncode

    @contextmanager
    def window(self, name: str, excuses: frozenset[str] = frozenset()) -> Iterator[Window]:
        window = Window(name, time.monotonic(), float("inf"), excuses)
        self.windows.append(window)
        yield window
        window.ended = time.monotonic()

    def labels(self) -> dict[str, str]:
        """The labels of all tasks of all servers, with their states."""
        found: dict[str, str] = {}
        for server in self.servers.values():
            with server.connect() as admin:
                found |= admin.execute("SELECT data ->> 'label', state::text FROM pgqueue.task").fetchall()
        return found


def calm(scene: Scene) -> None:
    with scene.window("calm"):
        time.sleep(scene.seconds)


def join(scene: Scene) -> None:
    new = scene.start(JOINING)
    with scene.window("join"):
        scene.command("add", new.dsn)
        time.sleep(scene.seconds)


def drain(scene: Scene) -> None:
    with scene.window("drain"):
        scene.command("drain", str(JOINING))


def move(scene: Scene) -> None:
    with scene.window("move"):
        deadline = time.monotonic() + MOVED_WITHIN
        while not scene.command("move", "--from", str(JOINING), may_fail=True) or _has_tasks(scene.servers[JOINING]):
            if time.monotonic() > deadline:
                raise TimeoutError(f"server {JOINING} still has tasks after {MOVED_WITHIN:g} s")


def remove(scene: Scene) -> None:
    with scene.window("remove"):
        scene.command("remove", str(JOINING))
        time.sleep(scene.seconds)


def refuse(scene: Scene) -> None:
    """End a server as by a crash: its connections break, and new ones are refused. Then it comes back."""
    for number in AWAY:
        server = scene.servers[number]
        with scene.window("refuse, home server" if number == 1 else "refuse", frozenset({"takes"})) as window:
            server.halt("immediate")
            time.sleep(scene.seconds)
            scene.absent.append((number, window))
        server.start()
        with scene.window("back, home server" if number == 1 else "back", frozenset({"takes"})):
            time.sleep(max(scene.seconds, AFTER))


def silence(scene: Scene) -> None:
    """Stop a server's postmaster and end its sessions: it accepts new connections and answers none. Then it goes on."""
    server = scene.servers[SILENT]
    postmaster = server.pid
    assert postmaster is not None
    with scene.window(measures.SILENT) as window:
        with server.connect() as admin:
            os.kill(postmaster, signal.SIGSTOP)
            admin.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
            )
        time.sleep(scene.seconds)
        scene.absent.append((SILENT, window))
    os.kill(postmaster, signal.SIGCONT)
    with scene.window("back from silence"):
        time.sleep(max(scene.seconds, AFTER))


Change = Callable[[Scene], None]
CHANGES: tuple[Change, ...] = (calm, join, drain, move, remove, refuse, silence)


def _has_tasks(server: Cluster) -> bool:
    with server.connect() as admin:
        return bool(admin.execute("SELECT FROM pgqueue.task LIMIT 1").rowcount)


@dataclass(frozen=True)
class Outcome:
    """What the ledger proves, the servers that were away, the end of the load, and the control."""

    proof: Proof
    absent: list[tuple[int, Window]]
    until: float
    control: measures.Control


def run(
    seconds: float,
    rate: float,
    seed: int = 0,
    bindir: Path | None = None,
    keep: Path | None = None,
    changes: tuple[Change, ...] = CHANGES,
) -> Outcome:
    """The load, the changes one after another, and the judgement. `seconds`: for which each change is watched."""
    with ExitStack() as stack:
        root = stack.enter_context(folder())
        scene = Scene(root, bindir, stack, seconds)
        for number in range(1, N_SERVERS + 1):
            new = scene.start(number)
            scene.command("add", new.dsn)
        journals = (keep or root) / "journals-cluster"
        journals.mkdir(parents=True, exist_ok=True)
        crew = Crew(journals, Way(scene.servers[1].dsn), rate, seed, ROLES)
        stack.callback(crew.close)
        steppers = [name for name in ROLES if name != CONTROL]
        if not crew.wait_for_steps(steppers, 0.0, AT_WORK_WITHIN):
            missing = sorted(set(steppers) - crew.stepped(0.0))
            raise TimeoutError(f"before any change, {missing} completed no step within {AT_WORK_WITHIN:g} s")
        for change in changes:
            change(scene)
            crew.wait_for_steps(steppers, scene.windows[-1].ended, BACK_WITHIN)  # the ledger tells if one was not back
        until = time.monotonic()
        tables = _finish(scene, crew)
        return _judge(crew.lives(), scene, until, tables)


def _finish(scene: Scene, crew: Crew) -> Tables:
    tables = Tables()
    crew.end(PRODUCERS)
    deadline = time.monotonic() + DRAINED_WITHIN
    while (left := scene.labels()) and time.monotonic() < deadline:
        time.sleep(0.05)
    tables.left |= left
    crew.end(list(crew.members))
    tables.other += crew.exits
    return tables


def _judge(lives: list[Life], scene: Scene, until: float, tables: Tables) -> Outcome:
    control = measures.Control(lives)
    lives = [life for life in lives if life.name != CONTROL]
    measures.tell_servers(lives)
    tables.other += measures.check(lives, scene.absent, until, control)
    return Outcome(prove(lives, scene.windows, tables), scene.absent, until, control)


# --- planted, to see that the ledger finds it


def lose(scene: Scene) -> None:
    """A loss: delete a task that waits for its time, on the server that joined."""
    with scene.servers[JOINING].connect() as admin:
        query = """
            DELETE FROM pgqueue.task WHERE id = (
                SELECT t.id FROM pgqueue.task t JOIN pgqueue.queue q ON q.id = t.queue_id
                 WHERE q.name = 'later' AND t.run_at > clock_timestamp() + '1 s' LIMIT 1)
        """
        while admin.execute(query).rowcount == 0:
            time.sleep(0.01)


def repeat(scene: Scene) -> None:
    """A repetition: put a copy of a task on another server, as a move would that does not delete."""
    with scene.servers[1].connect() as one, scene.servers[2].connect() as other:
        query = "SELECT data FROM pgqueue.task JOIN pgqueue.queue q ON q.id = queue_id WHERE q.name = 'later' LIMIT 1"
        while (found := one.execute(query).fetchone()) is None:
            time.sleep(0.01)
        other.execute("SELECT pgqueue.put('later', %s)", [Jsonb(found[0])])
