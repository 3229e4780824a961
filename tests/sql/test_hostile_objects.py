"""Objects that a stranger planted where everyone may create: nothing of pgqueue ever calls one.

On PostgreSQL 14 every role may create in the schema public, and it stays so after pg_upgrade. Whatever pgqueue names
without a schema means the stranger's object if that fits better, or comes first in the caller's search_path.
"""

from __future__ import annotations

import ast
import re
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import planting
import psycopg
import pytest
from commands import Commands
from sampling import sampled
from servers import Server

import pgqueue
from pgqueue import migrate
from pgqueue.errors import SchemaError
from pgqueue.worker import Worker

PATHS = ['"$user", public', "public, pg_catalog", "pg_temp, public, pg_catalog"]
VALUES = {
    "text": "q",
    "bigint": "1",
    "integer": "1",
    "double precision": "1",
    "boolean": "true",
    "interval": "1 s",
    "jsonb": "[1]",
    "uuid": "00000000-0000-4000-8000-000000000000",
    "timestamp with time zone": "2030-01-01",
    "text[]": "{q}",
    "bigint[]": "{1}",
    "integer[]": "{1}",
    "double precision[]": "{1}",
    "boolean[]": "{true}",
    "jsonb[]": "{1}",
    "timestamp with time zone[]": "{2030-01-01}",
}


@pytest.fixture(params=PATHS)
def planted(request: pytest.FixtureRequest, pg_server: Server) -> Iterator[str]:
    """A database in which a stranger planted all that it can, with a search_path that finds it."""
    yield from _planted(pg_server, request.param)


@pytest.fixture
def plain(pg_server: Server) -> Iterator[str]:
    yield from _planted(pg_server, PATHS[0])


def _planted(pg_server: Server, path: str, *, installed: bool = False) -> Iterator[str]:
    name = pg_server.create()
    dsn = pg_server.dsn(name)
    if installed:
        migrate.up(dsn)
    stranger = f"pgqueue_test_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(dsn, autocommit=True) as admin:
        admin.execute(f"CREATE ROLE {stranger}".encode())
        admin.execute("GRANT CREATE ON SCHEMA public TO PUBLIC")
        try:
            admin.execute(f"SET ROLE {stranger}".encode())
            planting.plant(admin)
            admin.execute("RESET ROLE")
            admin.execute(f"ALTER DATABASE {name} SET search_path = {path}".encode())
            yield dsn
        finally:
            admin.close()
            pg_server.drop(name)
            with pg_server.connect() as other:
                other.execute(f"DROP ROLE {stranger}".encode())


@pytest.fixture
def owner(planted: str) -> Iterator[psycopg.Connection]:
    """A superuser, with tables in pg_temp besides."""
    with psycopg.connect(planted, autocommit=True) as connection:
        connection.execute("SET statement_timeout = '20s'")
        planting.plant_temporary(connection)
        yield connection
        assert not planting.captured(connection)


@pytest.fixture
def role(owner: psycopg.Connection) -> Iterator[str]:
    name = f"pgqueue_test_{uuid.uuid4().hex[:12]}"
    owner.execute(f"CREATE ROLE {name}".encode())
    yield name
    owner.execute(f"DROP OWNED BY {name}; DROP ROLE {name}".encode())


@pytest.mark.slow
def test_the_trap_works(planted: str) -> None:
    """A call that names no schema falls into it, or none of the tests here could fail."""
    with psycopg.connect(planted, autocommit=True) as conn:
        with pytest.raises(psycopg.errors.RaiseException, match=planting.TRAP):
            conn.execute("SELECT format('%s', 'pg_class'::pg_catalog.regclass)")
        assert planting.captured(conn)


@pytest.mark.slow
def test_up_down_and_the_script(planted: str, owner: psycopg.Connection) -> None:
    path = owner.execute("SHOW search_path").fetchone()
    migrate.up(planted)
    assert migrate.status(planted).state == "up to date"
    migrate.up(connection=owner)
    migrate.down(connection=owner, revision="base", force=True)
    assert owner.execute("SHOW search_path").fetchone() == path
    owner.execute(migrate.sql().encode())
    assert owner.execute("SHOW search_path").fetchone() == path
    owner.execute(migrate.sql("0001:base", down=True).encode())
    assert Commands(planted).lines("migrate", "up") != []
    assert foreign_bindings(owner) == []


@pytest.fixture
def installed(pg_server: Server) -> Iterator[str]:
    """A database in which a stranger plants all that it can after pgqueue was installed, as PostgreSQL 14 allows."""
    yield from _planted(pg_server, PATHS[1], installed=True)


@pytest.mark.slow
def test_what_is_planted_after_the_installation(installed: str) -> None:
    with psycopg.connect(installed, autocommit=True) as admin:
        role = f"pgqueue_test_{uuid.uuid4().hex[:12]}"
        admin.execute(f"CREATE ROLE {role}".encode())
        try:
            for verb in ("grant_to(%s)", "grant_monitor(%s)"):
                admin.execute(f"SELECT pgqueue.{verb}".encode(), [role])
            with psycopg.connect(installed, autocommit=True, options=f"-c role={role}") as user:
                put(user)
                read_views(user)
                call_functions(user, role)
            put(admin)
            read_views(admin)
            migrate.up(installed)
            assert not planting.captured(admin)
        finally:
            admin.execute(f"DROP OWNED BY {role}; DROP ROLE {role}".encode())


@pytest.mark.slow
def test_grants_views_and_functions(planted: str, owner: psycopg.Connection, role: str) -> None:
    migrate.up(planted)
    owner.execute("SELECT pgqueue.create_queue('q')")
    for verb in (
        *("grant_monitor(%s)", "revoke_monitor(%s)", "grant_to(%s)", "revoke_from(%s)", "grant('q', %s)"),
        *("revoke('q', %s)", "grant_to(%s)", "grant('q', %s)"),
    ):
        owner.execute(f"SELECT pgqueue.{verb}".encode(), [role])
    with psycopg.connect(planted, autocommit=True, options=f"-c role={role}") as user:
        for conn in (owner, user):
            put(conn)
            read_views(conn)
            call_functions(conn, role)
            put(conn)
            read_views(conn)


@pytest.mark.slow
def test_the_client_and_the_command_line(planted: str, owner: psycopg.Connection) -> None:
    migrate.up(planted)
    with pgqueue.Client(planted) as client:
        use(client)
        client.queue("work").put({"n": 1})
        worker = Worker(client, {"work": lambda n: worker.stop()})
        worker.run()
        assert client.queue("work").stats()["total"] == 0
    run = Commands(planted)
    for arguments in COMMANDS:
        done = run(*arguments)
        assert planting.TRAP not in done.stdout + done.stderr, arguments
        assert done.returncode in (0, 1 if arguments == ("health",) else 0), (arguments, done.stderr)


COMMANDS = [
    ("create-queue", "shell", "ttr=60"),
    ("put", "shell", '{"a": 1}', "2", "3"),
    ("list", "shell"),
    ("peek-next", "shell"),
    ("take", "shell", "--ack"),
    ("pop", "shell"),
    ("stats",),
    ("queues",),
    ("bindings",),
    ("exchanges",),
    ("health",),
    ("post", "channel", "payload"),
    ("pause", "shell", "1"),
    ("resume", "shell"),
    ("kick", "shell"),
    ("truncate", "shell", "--yes"),
    ("delete-queue", "shell", "--yes"),
    ("migrate", "status"),
]


def use(client: pgqueue.Client) -> None:
    queue = client.create_queue("q", keep_done=60, capacity=100)
    queue.put({"n": 1}, priority=1, key="k", lane="l")
    queue.put_many([1, 2, 3], delay=0)
    task = queue.take(timeout=5)
    assert task is not None
    task.touch()
    task.progress(1)
    task.finish({"done": True})
    assert task.outcome().result == {"done": True}
    task = queue.take(timeout=5)
    assert task is not None
    assert task.stats().reserves == 1
    task.release(error="e")
    task = queue.take(timeout=5)
    assert task is not None
    task.bury()
    assert queue.peek_next("buried") is not None
    queue.kick(1)
    assert len(queue.pop(2)) == 2
    assert queue.stats()["total"] == 1
    assert client.take(["q", "work"], timeout=5) is not None
    assert queue.info().capacity == 100
    assert [info.name for info in client.queues(prefix="q")] == ["q"]
    client.exchanges.declare("e", "topic")
    client.exchanges.bind("q", "e", "a.*")
    client.exchanges.publish("e", "a.b", 1)
    assert len(client.exchanges.bindings("e", "q")) == len(client.exchanges.list()) == 1
    client.statuses.set("s", 1, ttl=60)
    assert client.statuses.get("s") == 1
    client.nodes.create("/a", 1)
    assert client.nodes.exists("/a")
    assert client.nodes.set("/a", 2).version == 1
    assert client.nodes.children("/") == ["a"]
    client.groups.join("g", {"m": 1})
    assert len(client.groups.members("g")) == 1
    with client.lock("l", timeout=5):
        pass
    client.identify()


def put(conn: psycopg.Connection) -> None:
    attempt(conn, "SELECT pgqueue.put('q', '1', key => 'k', lane => 'l', if_exists => 'ignore')")
    attempt(conn, "SELECT pgqueue.put_many('q', '[1, 2, 3]')")
    attempt(conn, "SELECT pgqueue.take('q')")


def read_views(conn: psycopg.Connection) -> None:
    views = (
        "SELECT c.relname FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid"
        " OPERATOR(pg_catalog.=) c.relnamespace WHERE n.nspname OPERATOR(pg_catalog.=) 'pgqueue'"
        " AND c.relkind OPERATOR(pg_catalog.=) 'v' ORDER BY 1"
    )
    names = [name for (name,) in conn.execute(views).fetchall() if not name.startswith("_")]
    assert len(names) > 10
    for name in names:
        conn.execute(f"SELECT * FROM pgqueue.{name}".encode())


def call_functions(conn: psycopg.Connection, role: str) -> None:
    """Every public function, with its least arguments and with all, as far as it comes."""
    query = (
        "SELECT p.proname, p.pronargs, p.pronargdefaults, p.proargnames,"
        " ARRAY (SELECT pg_catalog.format_type(t, NULL) FROM pg_catalog.unnest(p.proargtypes) t)"
        " FROM pg_catalog.pg_proc p JOIN pg_catalog.pg_namespace n ON n.oid OPERATOR(pg_catalog.=) p.pronamespace"
        " WHERE n.nspname OPERATOR(pg_catalog.=) 'pgqueue' AND p.proname OPERATOR(pg_catalog.!~) '^_' ORDER BY 1, 2"
    )
    functions = conn.execute(query).fetchall()
    assert len(functions) > 80
    for name, n, defaults, arguments, types in functions:
        if name.startswith("revoke"):
            continue  # the role would be without rights from here on: its caller has called them
        for least in (True, False):
            count = n - defaults if least else n
            values = [
                f"{argument} => '{role if 'regrole' in type else VALUES[type.removeprefix('pg_catalog.')]}'"
                for argument, type in zip((arguments or [])[:count], types[:count], strict=True)
            ]
            attempt(conn, f"SELECT * FROM pgqueue.{name}({', '.join(values)})")


def attempt(conn: psycopg.Connection, statement: str) -> None:
    """Run a statement that may be refused, but for no planted object.

    An operator or a type that was captured can make a statement fail before it calls anything: that is class 42.
    """
    refused: psycopg.Error | None = None
    try:
        conn.execute(statement.encode())
    except psycopg.Error as error:
        refused = error
    assert planting.TRAP not in str(refused), statement
    state = (refused.sqlstate if refused else None) or ""
    assert not state.startswith("42") or state == "42501", f"{statement}: {refused}"


# --- what is bound when it is created


BOUND = """
    SELECT pg_catalog.pg_describe_object(d.classid, d.objid, 0), i.identity
      FROM pg_catalog.pg_depend d, pg_catalog.pg_identify_object(d.classid, d.objid, 0) o,
           pg_catalog.pg_identify_object(d.refclassid, d.refobjid, 0) i
     WHERE i.schema OPERATOR(pg_catalog.=) 'public'
       AND (o.schema OPERATOR(pg_catalog.=) 'pgqueue' OR o.identity OPERATOR(pg_catalog.~) ' (on|for) pgqueue\\.')
"""


def foreign_bindings(conn: psycopg.Connection) -> list[Any]:
    return conn.execute(BOUND).fetchall()


BINDINGS = [
    "CREATE FUNCTION pgqueue._bad(a text) RETURNS boolean LANGUAGE sql RETURN hashtextextended(a, 1::int2)",
    "CREATE VIEW pgqueue.bad AS SELECT format('%s', 1::regrole)",
    "ALTER TABLE pgqueue.task ADD CHECK (state <> 'x'::varchar)",
]


@pytest.mark.slow
@pytest.mark.parametrize("statement", sampled(BINDINGS, keep=1))
def test_an_upgrade_refuses_what_was_bound_to_a_planted_object(plain: str, statement: str) -> None:
    migrate.up(plain)
    with psycopg.connect(plain, autocommit=True) as conn:
        conn.execute(statement.encode())
        assert len(foreign_bindings(conn)) >= 1
    with pytest.raises(SchemaError, match=r"was bound to .* public\."):
        migrate.up(plain)


# --- the library's own statements


LIBRARY = Path(pgqueue.__file__).parent
KEYWORDS = "int|bigint|boolean|float|bit"  # types that the grammar knows, so that no schema is searched
SYNTAX = {"extract", "coalesce", "array", "any", "all", "exists", "asked", "in", "checks", "values", "on", "as", "from"}


def statements() -> list[tuple[str, str]]:
    """Each string in the library that is SQL about pgqueue, with its place."""
    found = []
    for path in sorted(LIBRARY.rglob("*.py")):
        if path.parent.name in ("_sync", "demo"):
            continue
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                text = node.value
                if re.search(r"\b(SELECT|WHERE|FROM) ", text) and re.search(r"pgqueue\.\w+|pg_catalog|%s", text):
                    found.append((f"{path.relative_to(LIBRARY)}:{node.lineno}", text))
    return found


@pytest.mark.slow
def test_each_statement_of_the_library_names_schemas() -> None:
    known = statements()
    assert len(known) > 60
    wrong = []
    for place, text in known:
        code = re.sub(r"'[^']*'", "''", text)
        wrong += [(place, cast) for cast in re.findall(rf"::(?!pg_catalog\.|(?:{KEYWORDS})\b)\w+", code)]
        calls = re.findall(r"(?<![\w.%])([a-z_]+) ?\(", code)
        wrong += [(place, call) for call in calls if call not in SYNTAX and "SELECT" in code]
        bare = re.sub(r"OPERATOR\(pg_catalog\.[^)]+\)|=>|\*", "", code)
        wrong += [(place, operator) for operator in re.findall(r" (=|<>|<|>|<=|>=|\|\||\+|-|->>?|LIKE|IN) ", bare)]
    assert wrong == []
