"""The command line: what each command prints, its exit code, and how it puts what went wrong.

Commands that fail or are done at once run in this process, which is ten times as quick; the others as processes.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import click
import psycopg
import pytest
from click.testing import CliRunner
from commands import failed, invoke, run, started

import pgqueue
from pgqueue import cli, migrate


def commands(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            yield from commands(command.get_command(context, name), (*path, name))


COMMANDS = dict(commands(cli.main))


@pytest.fixture(scope="module")
def nowhere() -> Iterator[str]:
    """The DSN of a port at which nothing listens, and nothing else can."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"postgresql://app@127.0.0.1:{bound.getsockname()[1]}/any"


@pytest.fixture
def apps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with applications, right and wrong."""
    programs = {
        "good": "client = pgqueue.Client()\n@client.handler('q')\ndef handle(data): pass",
        "idle": "client = pgqueue.Client()",
        "other": "client = 'text'",
        "broken": "1 / 0",
        "needy": "import no_such_module",
    }
    for name, program in programs.items():
        (tmp_path / f"{name}.py").write_text(f"import pgqueue\n{program}\n")
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    for name in programs:
        sys.modules.pop(name, None)


# --- help


def test_these_are_the_commands():
    groups = {
        "cluster": ["status", "add", "drain", "remove", "move", "migrate", "grant"],
        "job": ["list", "put"],
        "migrate": ["up", "down", "status", "sql"],
        "server": ["start", "stop", "status", "dsn"],
    }
    verbs = (
        "put take ack release bury touch delete kick kick-task peek peek-next list queues stats "
        "create-queue alter delete-queue pause pop resume truncate wait post subscribe completion worker demo"
    )
    assert {(verb,) for verb in verbs.split()} <= COMMANDS.keys()
    for group, names in groups.items():
        assert {path[1] for path in COMMANDS if path[:1] == (group,) and path[1:]} == set(names)


@pytest.mark.parametrize("flag", ["--help", "-h"])
@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_every_command_has_help(path, flag):
    command = COMMANDS[path]
    done = CliRunner().invoke(cli.main, [*path, flag])
    assert done.exit_code == 0
    assert command.help
    assert command.help.split("\n")[0][:40] in done.output
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            assert parameter.help, f"{parameter.name} says nothing"
            assert parameter.opts[-1] in done.output


@pytest.mark.parametrize("arguments", [[], ["migrate"], ["server"]])
def test_a_group_without_a_command_shows_its_help(arguments):
    done = CliRunner().invoke(cli.main, arguments)
    assert done.exit_code == 2
    assert ("Commands:" if arguments else "Put and take tasks:") in done.output


def test_version():
    done = run("--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"pgqueue, version {pgqueue.__version__}\n", "")


@pytest.mark.slow
def test_the_installed_command_is_the_module():
    program = shutil.which("pgqueue", path=os.pathsep.join([str(Path(sys.executable).parent), os.defpath]))
    assert program
    installed = subprocess.run([program, "--help"], capture_output=True, text=True, check=True, timeout=60)
    assert installed.stdout.replace("Usage: pgqueue", "") == run("--help").stdout.replace(
        "Usage: python -m pgqueue", ""
    )


# --- what goes wrong


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nosuch"], "No such command 'nosuch'."),
        (["worker"], "Missing argument 'MODULE:CLIENT'."),
        (["worker", "good:client", "-c", "0"], "0 is not in the range x>=1"),
        (["worker", "good:client", "-c", "many"], "'many' is not a valid integer"),
        (["worker", "good:client", "--max-attempts", "0"], "0 is not in the range x>=1"),
        (["worker", "good:client", "--retry-delay", "-1"], "-1.0 is not in the range x>=0"),
        (["worker", "nosuch:client"], "nosuch cannot be loaded: No module named 'nosuch'"),
        (["worker", "needy:client"], "needy cannot be loaded: No module named 'no_such_module'"),
        (
            ["worker", "broken:client"],
            "broken cannot be loaded: ZeroDivisionError: division by zero (broken.py:2, in <module>)",
        ),
        (["worker", "good:nosuch"], "nosuch of good is not there"),
        (["worker", "other:client"], "client of other is a str, not a Client"),
        (["worker", "good:handle"], "handle of good is a function, not a Client"),
        (["demo", "--folder", "nosuch"], "Directory 'nosuch' does not exist."),
        (["demo", "--folder", "good.py"], "Directory 'good.py' is a file."),
        (["demo", "--workers", "0"], "0 is not in the range 1<=x<=64"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_wrong_command_line(apps, nowhere, arguments, said):
    assert said in failed(invoke(*arguments, PGQUEUE_DSN=nowhere), 2)


@pytest.mark.parametrize("command", ["cancel-all", "delete-all"])
def test_a_state_is_needed(apps, nowhere, command):
    done = invoke("--dsn", nowhere, command, "q", "--yes")
    assert done.returncode == 2
    assert "Missing option '-s' / '--state'" in done.stderr


@pytest.mark.parametrize(
    "arguments", [["worker", "good", "--check"], ["migrate", "status"], ["migrate", "up"], ["demo"]]
)
def test_no_server(apps, nowhere, arguments):
    port = nowhere.rpartition(":")[2].partition("/")[0]
    line = failed(invoke("--dsn", nowhere, *arguments), 1)
    assert "127.0.0.1" in line
    assert port in line


@pytest.mark.parametrize("arguments", [["worker", "good"], ["migrate", "status"], ["migrate", "down"], ["demo"]])
def test_a_dsn_that_is_none(apps, arguments):
    line = failed(invoke("--dsn", "nonsense", *arguments), 1)
    assert line.startswith("this is not a DSN that PostgreSQL understands: ")


@pytest.mark.parametrize("arguments", [["worker", "good"], ["demo"]])
def test_a_database_without_the_schema(apps, empty_dsn, arguments):
    line = failed(invoke("--dsn", empty_dsn, *arguments), 1)
    assert line == "this database has no pgqueue schema: run `pgqueue migrate up`"


def test_a_worker_without_a_handler(apps, dsn):
    line = failed(invoke("--dsn", dsn, "worker", "idle:client"), 2)
    assert line == "a worker needs a handler or a job: register one with @client.job() or @client.handler()"


@pytest.mark.parametrize(
    "arguments",
    [["migrate", "up", "--revision", "0099"], ["migrate", "sql", "--revision", "0099"], ["migrate", "sql", "--down"]],
    ids=" ".join,
)
def test_a_revision_that_is_none(empty_dsn, arguments):
    failed(invoke("--dsn", empty_dsn, *arguments), 1)


# --- worker


@pytest.mark.slow
def test_the_client_is_named_client_by_default(apps, dsn):
    text = (
        "import pgqueue, signal\n"
        "client = pgqueue.Client()\n"
        "@client.handler('q')\n"
        "def handle(data): signal.raise_signal(signal.SIGTERM)\n"
    )
    (apps / "once.py").write_text(text)
    with pgqueue.Client(dsn) as client:
        client.queue("q").put(1)
    done = run("-v", "--dsn", dsn, "worker", "once", cwd=apps)  # ends, since its handler stops it
    assert done.returncode == 0
    assert "INFO working on q" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_environment_names_the_database(apps, dsn, empty_dsn):
    assert invoke("migrate", "status", PGQUEUE_DSN=dsn, DATABASE_URL=empty_dsn).returncode == 0
    assert invoke("migrate", "status", DATABASE_URL=dsn).returncode == 0
    assert invoke("--dsn", empty_dsn, "migrate", "status", PGQUEUE_DSN=dsn).returncode == 1


# --- migrate


@pytest.mark.slow
def test_migrate_up_numbers_the_server(empty_dsn):
    done = invoke("--dsn", empty_dsn, "migrate", "up", "--server", "3")
    assert (done.returncode, done.stdout) == (0, "created schema pgqueue at version 0001\nthis is server 3\n")
    done = invoke("--dsn", empty_dsn, "migrate", "up", "--server", "4")
    assert (done.returncode, done.stdout) == (1, "")
    assert "this is server 3 already, so it cannot become server 4" in done.stderr
    assert invoke("--dsn", empty_dsn, "migrate", "up", "--server", "1024").returncode == 2


@pytest.mark.slow
def test_migrate_up_status_and_down(empty_dsn):
    def call(*arguments: str) -> tuple[int, str]:
        done = invoke("--dsn", empty_dsn, "migrate", *arguments)
        assert done.stderr == ""
        return done.returncode, done.stdout

    assert call("status") == (1, "not installed (database: nothing, library: 0001)\n")
    assert call("up") == (0, "created schema pgqueue at version 0001\n")
    assert call("up") == (0, "schema pgqueue stays at version 0001; its functions and views were made again\n")
    assert call("status") == (0, "up to date (database: 0001, library: 0001)\n")
    assert call("down") == (0, "removed schema pgqueue, which was at version 0001\n")
    assert call("status") == (1, "not installed (database: nothing, library: 0001)\n")
    assert call("up", "--revision", "0001") == (0, "created schema pgqueue at version 0001\n")


@pytest.mark.slow
def test_migrate_down_does_not_lose_tasks_unless_forced(dsn):
    with pgqueue.Client(dsn) as client:
        client.queue("q").put(1)
    line = failed(invoke("--dsn", dsn, "migrate", "down", "--revision", "base"), 1)
    assert "1 task" in line
    assert invoke("--dsn", dsn, "migrate", "status").returncode == 0
    done = invoke("--dsn", dsn, "migrate", "down", "--revision", "base", "--force")
    assert (done.returncode, done.stderr) == (0, "")
    assert invoke("--dsn", dsn, "migrate", "status").returncode == 1


@pytest.mark.slow
def test_migrate_sql_is_what_psql_would_run(empty_dsn):
    done = invoke("migrate", "sql")
    assert (done.returncode, done.stderr) == (0, "")
    with psycopg.connect(empty_dsn, autocommit=True) as connection:
        connection.execute(done.stdout)
    assert invoke("--dsn", empty_dsn, "migrate", "status").returncode == 0
    down = invoke("migrate", "sql", "--down", "--revision", "0001:base")
    assert down.stdout.strip() == migrate.sql("0001:base", down=True).strip()


@pytest.mark.slow
def test_migrate_sql_into_a_pipe_that_closes():
    with started("migrate", "sql", stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        process.stdout.readline()
        process.stdout.close()
        process.wait(30)
        assert process.stderr.read() == ""


# --- server


@pytest.fixture
def home() -> Iterator[Path]:
    # Not tmp_path: as root the server runs as another account, which has to be let through.
    home = Path(tempfile.mkdtemp(prefix="pgq-"))
    home.chmod(0o711)
    yield home
    invoke("server", "stop", PGQUEUE_HOME=str(home / "data"))
    shutil.rmtree(home)


@pytest.mark.slow
def test_server_start_status_dsn_and_stop(home):
    def call(*arguments: str) -> subprocess.CompletedProcess[str]:
        return invoke("server", *arguments, PGQUEUE_HOME=str(home / "data"))

    def status() -> dict[str, str]:
        return dict(line.split(maxsplit=1) for line in call("status").stdout.splitlines())

    assert failed(call("dsn"), 1) == "the embedded server does not run: `pgqueue server start`"
    assert call("status").returncode == 1
    assert status()["running"] == "no"
    assert call("stop").stdout == "it was not running\n"

    begun = call("start")
    assert (begun.returncode, begun.stderr) == (0, "")
    dsn = begun.stdout.strip()
    assert call("start").stdout.strip() == call("dsn").stdout.strip() == dsn
    assert call("status").returncode == 0
    seen = status()
    assert seen["running"].startswith("yes, process ")
    assert (seen["kept"], seen["dsn"]) == ("until `pgqueue server stop`", dsn)
    assert Path(seen["data"]).is_relative_to(home)
    with psycopg.connect(dsn) as connection:
        assert connection.info.dbname == "pgqueue"

    # What names no server uses this one, and installs the schema there.
    text = "import pgqueue\nwith pgqueue.Client() as client: print(client.queue('q').put(1).id)"
    done = subprocess.run(
        [sys.executable, "-c", text],
        env={**os.environ, "PGQUEUE_HOME": str(home / "data"), "PGQUEUE_DSN": "", "DATABASE_URL": ""},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.stdout, done.stderr) == ("1\n", "")
    assert run("migrate", "status", PGQUEUE_HOME=home / "data").returncode == 0  # a process: it joins and leaves

    assert call("stop").stdout == "stopped\n"
    assert call("stop").stdout == "it was not running\n"
    assert status()["running"] == "no"


@pytest.mark.slow
def test_output_that_nobody_reads_ends_it_quietly():
    """As in `pgqueue ... | head`: what is still in the buffer must not fail at the interpreter's end."""
    ours, theirs = os.pipe()
    os.close(ours)
    program = "from pgqueue.cli.plainly import plainly; plainly(lambda: print('unread'))()"
    done = subprocess.run([sys.executable, "-c", program], stdout=theirs, stderr=subprocess.PIPE, timeout=30)
    os.close(theirs)
    assert (done.returncode, done.stderr) == (1, b"")


def test_the_help_says_whole_sentences_in_sections():
    done = invoke("--help")
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert "..." not in done.stdout.replace("[ARGS]...", "")
    assert {name for names in cli.SECTIONS.values() for name in names} >= cli.COMMANDS.keys()
    shown = [line.split()[0] for line in lines if line.startswith("  ") and not line.startswith("   ")]
    assert cli.COMMANDS.keys() <= set(shown)
    assert "Other commands:" not in lines


def test_mistyped_names_get_a_suggestion(command, blocking):
    blocking().create_queue("mail")
    assert command.fails(2, "trunkate") == "No such command 'trunkate'. Did you mean 'truncate'?"
    assert "Did you mean" in command.fails(2, "schedule", "lsit")
    assert command.fails(2, "put", "mail", "1", "--prioritty", "3").startswith("No such option '--prioritty'.")
    said = command.fails(2, "migrate", "up", "--dsn", "postgresql://db.example/shop")
    assert said == "--dsn stands before the command: `pgqueue --dsn ... COMMAND`"
    assert command.fails(1, "list", "mial") == "there is no queue 'mial'. Did you mean 'mail'?"
    assert command.fails(1, "list", "nowhere near") == "there is no queue 'nowhere near'"
    assert command.fails(1, "rename-queue", "mial", "mailing") == "there is no queue \"mial\". Did you mean 'mail'?"


def test_an_unknown_option_of_a_queue_names_the_options_that_there_are(command):
    said = command.fails(2, "alter", "mail", "capacty=3")
    assert "DURATIONS" not in said
    assert said.endswith("metadata. Did you mean 'capacity'?")
