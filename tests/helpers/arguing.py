"""Hostile arguments for every public function, and a database that they are tried on.

A call of a public function with any arguments has one of two outcomes: it succeeds, or it fails with an SQLSTATE of
pgqueue's. What it stored is then read by every view.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
from hostile import STRINGS
from psycopg import sql
from statements import column, planned, rows

from pgqueue._calls import exchanges, find, nodes, pick, queue, results, schedules, statuses
from pgqueue._calls.call import Call

LONG = 100_001  # more elements than an array may have

#: SQLSTATEs of PostgreSQL that a caller may get all the same, each with the reason.
EXPECTED = {
    "57014": "query_canceled: the call waits, for a lock of the caller's choice",
    "55P03": "lock_not_available: likewise",
}
#: Functions that give and take away rights: roles belong to the whole server, and not to the database of a test. And
#: set_server, which a database with tasks refuses.
OTHERS = ("grant", "revoke", "restrict_queue", "set_quota", "set_server")

COUNTS = "[" + ", ".join(["1"] * 22) + "]"
RUNS = f'[{{"queue": "q", "job": "j", "done": 1, "waited": 0.5, "ran": 1e9, "waits": {COUNTS}, "runs": {COUNTS}}}]'
NOT_RUNS = RUNS.replace("1e9", '"NaN"')

TEXTS = [
    *(None, "", "q", "lanes", "missing", "a", " ", "x" * 63, "x" * 64, "x" * 200, "x" * 201, "x" * 255, "x" * 256),
    *("x" * 1024, "x" * 1025, "x" * 65_536, "x" * 65_537, "x" * 1_000_000, "ü" * 127, "ü" * 128, "€" * 200, "😀" * 200),
    *("/", "/a", "/a/", "//", "/a/../b", "/a/.", "/" + "x" * 1023, "/" + "x" * 1024, "/" + "ü" * 1023, "member-"),
    *("%", "\\", "(", "*.#", "a.*.#", "#", "+/+", "a+", "a/#", "$SYS/#", "pgqueue:1", "\x01pgqueue:7", "a;b", "%s %I"),
    *("ready", "taken", "delayed", "buried", "blocked", "done", "ignore", "error", "replace"),
    *("fifo", "utube", "limfifottl", "fanout", "topic", "mqtt", "1.1", "0.0", "9" * 18 + "." + "9" * 18, "1.", "NULL"),
    *STRINGS.values(),
]
JSON = [
    *(None, "null", "1", "-0.0", '"x"', "[]", "{}", "true", "1e1000", "1e-1000", '"' + "x" * 100_000 + '"'),
    *("[" * 500 + "]" * 500, "[1]", "[null]", "[[1]]", "[1, 2, 3]", '[{"queue": "q"}]', '{"queue": "q"}', "[{}]"),
    *('[{"queue": null}]', '[{"queue": 5}]', '[{"queue": "q", "delay": "x"}]', '[{"queue": "q", "priority": 1e10}]'),
    *('[{"queue": "q", "delay": -1}]', '[{"queue": "q", "ttl": 1e300}]', '[{"queue": "q", "sender": "x"}]'),
    *('[{"queue": "q", "run_at": "x"}]', '[{"queue": "q", "if_exists": "x"}]', '[{"queue": "q", "lane": [1]}]'),
    *('[{"queue": "q", "delay": "NaN"}]', '[{"queue": "q", "ttr": "infinity"}]', '[{"queue": "q", "run_at": "today"}]'),
    *('{"ttl": "x"}', '{"ttl": -1}', '{"ttl": "1 s"}', '{"ttl": [1]}', '{"ttl": "1e400 s"}', '{"capacity": "x"}'),
    *('{"priority": 1e20}', '{"priority": 1.5}', '{"listed": "maybe"}', '{"listed": true}', '{"name": "x"}'),
    *('{"maxlen": 0}', '{"maxlen": {}}', '{"dead_letter": ""}', '{"dead_letter": 5}', '{"x": 1}', '{"metadata": [1]}'),
    *('[{"queue": "q", "job": "j", "waits": 5}]', '[{"queue": "q", "job": "j", "waits": ["x"]}]', RUNS, NOT_RUNS),
    *('{"dead_letter": "", "dead_letter_key": "dead"}', '{"dead_letter": "", "dead_letter_key": ""}'),
]
VALUES: dict[str, list[Any]] = {
    "boolean": [None, True, False],
    "integer": [None, 0, -1, 1, 2, 7, 100_000, 2**31 - 1, -(2**31), -(2**31) + 1],
    "bigint": [None, 0, -1, 1, 2, 3, 4, 2**53, 2**63 - 1, -(2**63), -(2**63) + 1],
    "text": TEXTS,
    "interval": [
        *(None, "0", "-1 us", "1 us", "1 s", "1000000000 s", "1000000001 s", "100 years", "170000000 years"),
        *("-170000000 years", "1 mon -30 days", "1 mon -31 days", "-1 day 25 hours", "infinity", "-infinity"),
    ],
    "timestamp with time zone": [
        *(None, "infinity", "-infinity", "294276-01-01", "4713-01-01 BC", "0001-01-01 BC", "epoch", "now"),
        *("9999-12-31 23:59:59.999999+00", "now() + 1e9 s"),
    ],
    "uuid": [None, "00000000-0000-0000-0000-000000000000", "7d1f9a32-8d5d-4dd5-a0a4-2f7ac8b4c9a1"],
    "jsonb": JSON,
    "jsonb[]": [None, "{}", "{NULL}", '{"[]"}', '{"{}"}', '{"{}",NULL}', '{{"{}"},{"{}"}}', '[2:2]={"{}"}', LONG],
    "integer[]": [None, "{}", "{1}", "{NULL}", "{1,1}", "{{1,2},{3,4}}", "[2:3]={1,2}", "{2147483647,-1}", LONG],
    "double precision[]": [
        *(None, "{}", "{1}", "{NULL}", "{1,1}", "{{1,2},{3,4}}", "[2:3]={1,2}", "{NaN}", "{Infinity,-1}", "{1e308}"),
        *("{-1e308,5e-324}", LONG),
    ],
    "bigint[]": [
        *(None, "{}", "{1}", "{NULL}", "{1,NULL}", "{1,1,1}", "{{1,2},{3,4}}", "[2:3]={1,2}", "[-1:0]={1,2}", "{-1}"),
        *("{1,2,3}", "{9223372036854775807}", LONG),
    ],
    "timestamp with time zone[]": [
        *(None, "{}", "{NULL}", "{epoch}", "{epoch,epoch}", "{now}", "{infinity}", "{-infinity}", "{294276-01-01}"),
        *("{{now,now},{now,now}}", "[2:3]={epoch,now}", LONG),
    ],
    "text[]": [
        *(None, "{}", "{q}", "{NULL}", "{q,NULL}", "{q,q,lanes}", '{""}', "{{q,q},{q,q}}", "[2:3]={q,q}"),
        *("{a,b}", "{" + "x" * 256 + "}", "{" + "x" * 1_000_000 + "}", LONG),
    ],
}
#: What a call has that is hostile in one argument only. Ids and tokens are those of prepare().
USUAL: dict[str, Any] = {
    **dict.fromkeys(("queue", "name"), "q"),
    **dict.fromkeys(("data", "value", "result"), "[1]"),
    **dict.fromkeys(("n", "queue_id"), 1),
    "exchange": "e",
    "key": "k",
    "path": "/a",
    "state": "ready",
    "verb": "cancel",
    "channel": "c",
    "payload": "p",
    "puts": "[]",
    "queues": "{q}",
    **dict.fromkeys(("queue_ids", "waited", "places"), "{1}"),
    "new_name": "new",
    "duration": "1 s",
    **dict.fromkeys(("writer", "batch", "number"), 1),
    "runs": "[]",
    "options": "{}",
    "shared": False,
    "source": "program",
    "items": '[{"name": "q", "queue": "q", "every": 60}]',
    "revision": 1,
    "occurrences": "{}",
    "cron": "@daily",
    "wait": True,
}
#: What a function needs in place of these, or besides its required arguments, in order to succeed.
PARTICULAR: dict[str, dict[str, Any]] = {
    "add_server": {"number": 2, "dsn": "service=other"},
    "create_queue": {"name": "new"},
    "declare_limit": {"job": "j"},
    "delete_exchange": {"name": "e"},
    "delete_queue": {"name": "lanes"},  # no task of it is taken
    "list_messages": {"queue": "listed"},
    "record_step": {"name": "s"},
    "set_limit": {"concurrency": 1},
    "set_schedule": {"cron": None, "every": "1 h"},
}
RAISED = "now() + 1e9 s"
SERVERS = '[{"number": 0, "dsn": "service=home", "state": "active", "is_home": true}]'


@dataclass(frozen=True)
class Function:
    name: str
    arguments: dict[str, str]  # their types by name
    required: int

    def __str__(self) -> str:
        return f"{self.name}({', '.join(self.arguments.values())})" if self.name == "why" else self.name

    def call(self, given: dict[str, Any]) -> sql.Composed:
        """The statement, with literals: a parameter would have to be adapted for each type."""
        texts = [sql.SQL("{} => {}").format(sql.Identifier(k), literal(v, self.arguments[k])) for k, v in given.items()]
        whole = sql.SQL("SELECT * FROM pgqueue.{}({})")
        return whole.format(sql.Identifier(self.name), sql.SQL(", ").join(texts))


def literal(value: Any, type: str) -> sql.Composable:
    if value == LONG and type.endswith("[]"):  # as a number it is a value like any other
        elements = {
            "text[]": "array_agg(i::text)",
            "jsonb[]": "array_agg(to_jsonb(i))",
            "timestamp with time zone[]": "array_agg(to_timestamp(i))",
        }.get(type, f"array_agg(i)::{type}")
        return sql.SQL(f"(SELECT {elements} FROM generate_series(1, {LONG}) i)")  # type: ignore[arg-type]  # not a literal
    if value == RAISED:
        return sql.SQL("(clock_timestamp() + interval '1000000001 s')")
    text = None if value is None else str(value)
    return sql.SQL("{}::{}").format(sql.Literal(text), sql.SQL(type))  # type: ignore[arg-type]  # from pg_proc


def functions(conn: psycopg.Connection) -> list[Function]:
    """The public functions with arguments."""
    found = rows(
        conn,
        "SELECT p.proname, ARRAY (SELECT u.name"
        "  FROM unnest(p.proargnames, p.proargmodes) WITH ORDINALITY u(name, mode, n)"
        " WHERE u.mode IS NULL OR u.mode IN ('i', 'b') ORDER BY u.n),"
        " ARRAY (SELECT format_type(t.type, NULL) FROM unnest(p.proargtypes::oid[]) WITH ORDINALITY t(type, n)"
        "         ORDER BY t.n), p.pronargs - p.pronargdefaults"
        " FROM pg_proc p WHERE p.pronamespace = 'pgqueue'::regnamespace AND p.pronargs > 0"
        " AND NOT starts_with(p.proname, '_') ORDER BY p.proname, 3",
    )
    named = [Function(name, dict(zip(names, types, strict=True)), n) for name, names, types, n in found]
    return [function for function in named if not function.name.startswith(OTHERS)]


class Usual:
    """Arguments that a function succeeds with."""

    def __init__(self, known: dict[str, Any], particular: dict[str, dict[str, Any]]) -> None:
        self.known = USUAL | known
        self.particular = PARTICULAR | particular

    def of(self, function: Function) -> dict[str, Any]:
        return self.known | self.particular.get(function.name, {})

    def needed(self, function: Function) -> list[str]:
        """The required arguments, and those that it does not succeed without."""
        required = list(function.arguments)[: function.required]
        return list(dict.fromkeys((*required, *self.particular.get(function.name, {}))))


def prepare(conn: psycopg.Connection) -> Usual:
    """A queue with tasks in each state, queues with options, exchanges, nodes, a batch and a claim."""
    conn.execute("SET statement_timeout = '20 s'")
    conn.execute("SET lock_timeout = '2 s'")
    rows(conn, "SELECT pgqueue.put_many('q', '[1, 2, 3, 4, 5, 6]')")
    rows(conn, "SELECT pgqueue.put('q', '1', delay => '1 h'), pgqueue.bury((pgqueue.put('q', '1')).id)")
    rows(conn, "SELECT pgqueue.put('lanes', '1', lane => 'a', key => 'k'), pgqueue.put('lanes', '2', lane => 'a')")
    rows(conn, "SELECT pgqueue.create_queue('listed', listed => true, keep_done => '1 h', capacity => 100)")
    rows(conn, "SELECT pgqueue.put('listed', '1', key => 'k')")
    for name, type in (("e", "direct"), ("t", "topic"), ("m", "mqtt"), ("f", "fanout")):
        rows(conn, "SELECT pgqueue.declare_exchange(%s, %s)", name, type)
    rows(conn, "SELECT pgqueue.bind('q', 'e', 'k'), pgqueue.bind('q', 't', '*.#'), pgqueue.bind('q', 'm', 'a/#')")
    rows(conn, "SELECT pgqueue.create_node('/a'), pgqueue.set_status('k', '1'), pgqueue.try_lock('l')")
    rows(conn, "SELECT pgqueue.set_schedule('q', 'q', every => '1 h')")
    ((id, token),) = rows(conn, "SELECT id, token FROM pgqueue.take('q')")
    (claim,) = column(conn, "SELECT claim FROM pgqueue.claim_messages('q', 1)")
    (batch,) = column(conn, "SELECT pgqueue.create_batch()")
    rows(conn, "SELECT pgqueue.add_server(0, 'service=home'), pgqueue.add_server(1, 'service=other')")
    rows(conn, "SELECT pgqueue.set_server_state(1, 'draining')")
    ((cluster, version),) = rows(conn, "SELECT id, version FROM pgqueue.cluster")
    copy = {"cluster": cluster, "version": version + 1, "servers": SERVERS}
    known = {"id": id, "ids": f"{{{id}}}", "token": token, "tokens": f"{{{token}}}", "claim": claim}
    return Usual(known, {"close_batch": {"id": batch}, "copy_servers": copy})


def outcome(conn: psycopg.Connection, statement: sql.Composed) -> str:
    """What a call came to: `ok`, or the SQLSTATE and the message. Within the caller's transaction.

    What an error aborts is rolled back, and what succeeded stays.
    """
    conn.execute("SAVEPOINT before")
    try:
        conn.execute(statement).fetchall()
    except psycopg.Error as error:
        if error.sqlstate is None:  # the connection is lost, or Python cannot read the answer
            raise
        conn.execute("ROLLBACK TO SAVEPOINT before")
        return f"{error.sqlstate} {error.diag.message_primary} [{(error.diag.context or '')[:300]}]"
    else:
        return "ok"


VIEWS = (
    *("tasks", "queues", "statuses", "results", "nodes", "locks", "exchanges", "bindings", "dead_letters", "takes"),
    *("schedules", "attempts", "cancellations", "limits", "batches", "batch_failures", "batch_stats", "dependencies"),
    "steps",
)


def read_back(conn: psycopg.Connection, lists: bool = False) -> None:
    """Every row that applications can read becomes a Python value, in SQL and by the client's calls that look.

    One thing stands, and is documented: JSON numbers that a float cannot hold are a ValueError in Python.

    To be called last in a transaction that is rolled back.
    """
    conn.execute("SET LOCAL plan_cache_mode = force_generic_plan")  # one plan for any arguments
    for view in (*VIEWS, "sessions", "quotas"):
        planned(conn, f"SELECT * FROM pgqueue.{view}")
    for call in looks(conn, lists):
        try:
            call.read(planned(conn, call.sql, call.args))
        except ValueError as error:
            assert str(error).endswith("is out of the range of a float")  # noqa: PT017  # it need not be raised


def looks(conn: psycopg.Connection, lists: bool) -> Iterator[Call[Any]]:
    yield queue.queues("", None, None)
    yield exchanges.list_exchanges()
    yield exchanges.list_bindings(None, None)
    yield schedules.list_schedules()
    yield schedules.due_schedules([])
    for id, of in rows(conn, "SELECT id, queue FROM pgqueue.tasks ORDER BY id DESC LIMIT 1"):
        if lists:  # as long as all the others together
            yield find.tasks(of, None, 100, 0, find.Filter())
            yield find.page(of, "ready", find.Filter(), 100, None)
        yield pick.peek(id)
        yield pick.task_stats(id)
        yield exchanges.deaths(id)
    for id in column(conn, "SELECT id FROM pgqueue.results"):
        yield results.outcome(id)
    for path in column(conn, "SELECT path FROM pgqueue.nodes"):
        yield nodes.get(path)
    for key in column(conn, "SELECT key FROM pgqueue.statuses"):
        yield statuses.get_status(key)


def wrote(conn: psycopg.Connection) -> bool:
    """Whether the transaction changed anything."""
    return column(conn, "SELECT pg_current_xact_id_if_assigned() IS NOT NULL") == [True]


def is_ours(outcome: str) -> bool:
    return outcome == "ok" or outcome.startswith("PQ") or outcome[:5] in EXPECTED


def values(conn: psycopg.Connection, type: str) -> Sequence[Any]:
    """Without those that the server does not know: intervals are infinite from PostgreSQL 17 on."""
    unknown = {"infinity", "-infinity"} if type == "interval" and conn.info.server_version < 170000 else set()
    return [value for value in VALUES[type] if value not in unknown]
