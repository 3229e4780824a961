"""Random calls by roles with part of the rights, beside a victim: what rights_calls.py cannot foresee.

A run is a number of rounds. In each, one role makes a few calls of random public functions and views, with arguments
that are right, wrong or the victim's. Half of the rounds have a rival, whose transaction stays open and holds locks on
the same rows: of another such role, or the victim's own. Half have an old snapshot: the role's transaction at
REPEATABLE READ began before others committed.

All calls come from one thread and one seed, so a run can be repeated: the server alone decides on what it is not told,
such as ids and times.
"""

from __future__ import annotations

import contextlib
import random
import re
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
from psycopg.types.string import TextLoader
from rights_victim import HOLDER, SECRET, SHARED, Victim, hold
from steady import Steady, steady

#: The grants of the kinds of roles that call: each with some right, and none with one for the victim's queues.
KINDS = {
    "user": ("SELECT pgqueue.grant_to({role})",),
    "all": ("SELECT pgqueue.grant_to({role}, '{{put,take,look,manage}}', 'q*')",),
    "put": ("SELECT pgqueue.grant_to({role}, '{{put}}', 'q*')",),
    "take": ("SELECT pgqueue.grant_to({role}, '{{take}}', 'q*')", "SELECT pgqueue.grant('q1', {role}, '{{put}}')"),
    "look": ("SELECT pgqueue.grant_to({role}, '{{look}}', 'q*')", "SELECT pgqueue.grant('q1', {role}, '{{put}}')"),
    "manage": ("SELECT pgqueue.grant_to({role}, '{{manage}}', 'q*')", "SELECT pgqueue.grant('q1', {role}, '{{put}}')"),
    "share": ("SELECT pgqueue.grant_to({role}, '{{share}}')", "SELECT pgqueue.grant('q2', {role})"),
    "monitor": ("SELECT pgqueue.grant_monitor({role})", "SELECT pgqueue.grant('q2', {role}, '{{put,take}}')"),
    "stranger": (),
}

SIGNATURES = """
    SELECT p.proname, p.pronargs - p.pronargdefaults, array_agg(u.name ORDER BY u.n), array_agg(u.type ORDER BY u.n),
           ARRAY (SELECT role FROM unnest(%s::text[]) role WHERE has_function_privilege(role, p.oid, 'EXECUTE'))
      FROM pg_proc p
      LEFT JOIN LATERAL (SELECT n, p.proargnames[n] AS name, format_type(t, NULL) AS type
                           FROM unnest(p.proargtypes::oid[]) WITH ORDINALITY a(t, n)) u ON true
     WHERE p.pronamespace = 'pgqueue'::regnamespace AND NOT starts_with(p.proname, '_') GROUP BY p.oid ORDER BY p.oid"""
VIEWS = """
    SELECT relname FROM pg_class WHERE relnamespace = 'pgqueue'::regnamespace AND relkind = 'v'
       AND NOT starts_with(relname, '_') ORDER BY 1"""

#: What the queues of all callers have at the beginning: limits, lanes, keys, a capacity, results, a dead letter.
SCENE = """
    SELECT pgqueue.alter_queue('q1', '{{"keep_done": "1 h", "listed": true}}');
    SELECT pgqueue.alter_queue('q2', '{{"dead_letter": "", "dead_letter_key": "q1", "max_takes": 2}}');
    SELECT pgqueue.create_queue('q3', capacity => 20);
    SELECT pgqueue.create_queue('q4');
    SELECT pgqueue.set_limit('q4', concurrency => 2);
    SELECT pgqueue.put_many('q1', '[1, 2, 3]', lanes => '{{a,a,b}}'), pgqueue.put_many('q2', '[1, 2]'),
           pgqueue.put_many('q4', '[{{"job": "j"}}, 2]');
    SELECT pgqueue.queue_id('waldo'), pgqueue.grant('waldo', '{victim}'), pgqueue.restrict_queue('waldo');
    SELECT pgqueue.put('waldo', '"xyzzy"', delay => '1 h')
"""

WORDS = ["", "k", "a", "x" * 300, "x" * 5000, "\u202e\x1b[31m", "a.b", "#", "*", "a.#", "/", "/a", "/a/b", "/groups/x"]
WORDS += [
    "ignore",
    "error",
    "replace",
    "wait",
    "bury",
    "run",
    "direct",
    "topic",
    "fanout",
    "fifo",
    "utube",
    "limfifottl",
]
WORDS += ["ready", "taken", "buried", "delayed", "none", "one", "all", "UTC", "Europe/Berlin", "@daily", "* * * * *"]
WORDS += [
    "0 0 30 2 *",
    "kick",
    "delete",
    "release",
    "failed",
    "timeout",
    "9" * 30,
    "%",
    "_",
    "\\",
    "'",
    '"',
    "pgqueue:1",
]
#: Names of the victim's, as `text`.
THEIRS = ["secret", "secret.source", "secret.dead", "secret.own", "victim", "victim lock", "victim batch", "/victim"]
THEIRS += ["/brief", "news", "own news", "the key", "victim status", "victim channel", "rare"]
OWN = ["q1", "q1", "q2", "q3", "q4", "q5", "q6"]
INTEGERS = [0, 1, -1, 2, 3, 5, 100, 2**31 - 1, -(2**31)]
BIGINTS = [0, 1, -1, 2**63 - 1, -(2**63), 2**31, 10**15]
FLOATS = [0.0, 1.0, -1.0, 1e9, 1e300, float("nan"), float("inf"), float("-inf"), 0.1]
INTERVALS = ["0", "1 s", "-1 s", "10 ms", "1 h", "290000 years", "-290000 years", "1 mon", "1 day -24 h"]
INTERVALS += ["0.0000001 s", "1000000000 s", "1000000001 s"]
TIMES = ["infinity", "-infinity", "epoch", "9999-12-31", "294276-12-31", "4714-11-24 BC", "2020-01-01", "tomorrow"]
NUMBER = "9" * 5000
COUNTS = "[" + ",".join("1" * 22) + "]"
JSONS = ["null", "1", "[]", "{}", '"x"', "[1, 2, 3]", "[null]", "[5]", "[[1]]", "1e5000", "-1e-400", NUMBER]
JSONS += ['{"job": "j", "args": {"u": 1}}', '{"job": 5}', '"\\u0001\\u001b\\u202e"', "[" * 500 + "]" * 500]
JSONS += [
    '{"a":' * 50 + "1" + "}" * 50,
    '{"ttl": "1 s"}',
    '{"ttl": 5, "capacity": 3}',
    '{"maxlen": 2}',
    '{"capacity": "x"}',
]
JSONS += [
    '{"keep_done": "1 h"}',
    '{"max_takes": 1, "dead_letter": "", "dead_letter_key": "secret"}',
    '{"listed": true}',
]
JSONS += [
    '{"capacity": "x"}',
    '{"dead_letter": "news"}',
    '{"ttl": "infinity"}',
    '{"priority": 99999999999}',
    '{"metadata": {}}',
]
JSONS += ['{"delay": 1e18}', '{"delay": "NaN", "key": "k"}', '{"key": "the key", "if_exists": "replace"}']
PARTS = ['"data": 1', '"data": 1, "delay": 1e300', '"delay": "NaN"', '"priority": 1e20', '"batch": 1', '"name": null']
PARTS += ['"name": "s", "every": 60', '"name": "victim", "every": 60', '"name": "s", "every": 1e300', '"key": "k"']
PARTS += [
    f'"data": {NUMBER}',
    f'"job": "j", "done": 1, "waits": {COUNTS}, "runs": {COUNTS}',
    '"job": "j", "done": 1e30',
]
JSONS += [f'[{{"queue": "{queue}", {part}}}]' for queue in ("q1", "q2", "secret") for part in PARTS]
JSONS += ['[{"queue": "q2"}, {"queue": "q1", "after": [-1], "on_failure": "bury"}]', '[{"queue": null}]']

#: A queue of the victim's that no call names.
NAME = "waldo"
HIDDEN = (
    "SELECT id FROM pgqueue.queue WHERE name = 'waldo' UNION ALL SELECT id FROM pgqueue.tasks WHERE queue = 'waldo'"
)

#: The names in the table of rights that are ids of tasks.
TASKS = ("ready", "delayed", "taken", "blocked", "buried", "claimed", "dead", "own", "waiting", "done")

#: What an older snapshot does not have; and the queues go on, whatever the callers did to them.
CHANGE = """
    BEGIN;
    DELETE FROM pgqueue.draining;
    UPDATE pgqueue.queue SET draining = false, paused_until = NULL, maxlen = NULL, max_size = NULL WHERE name LIKE 'q%';
    COMMIT;
    SELECT pgqueue.put(q, '1', key => 'k', if_exists => 'ignore'), pgqueue.put(q, '2')
      FROM unnest('{q1,q2,q4}'::text[]) q
"""

PASSWORD = "fuzz"

#: Rows that are not the victim's: queues of the callers, the parent of all nodes, statuses, which all roles that share
#: may set, and payloads, which last a minute.
CHANGING = re.compile(r'queue \{"id":\d+,"name":"q|node \{"path":"/",|status |payload ')
#: All roles that share bind to the victim's exchange, and its exclusive queue is open for puts.
ALLOWED = re.compile(r'"(bound_at|lanes|flows|special)":[^,}]+')

#: A caller waits so long for a lock, so that a rival costs little time.
LOCK_TIMEOUT = "50ms"
LONGEST = 2.0  # seconds of a call


def documented() -> set[str]:
    """The SQLSTATEs that docs/reference/errors.md has."""
    page = Path(__file__).parents[2] / "docs" / "reference" / "errors.md"
    return set(re.findall(r"`([0-9A-Z]{5})`", page.read_text("utf-8").partition("## SQLSTATEs")[2]))


@dataclass
class Caller:
    """A role of some kind, with its connection and what it has learnt."""

    kind: str
    role: str
    conn: psycopg.Connection
    tasks: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    sessions: list[int] = field(default_factory=list)
    batches: list[int] = field(default_factory=list)
    queues: list[int] = field(default_factory=list)

    def learn(self, function: str, names: list[str], rows: list[tuple[Any, ...]]) -> None:
        for name, value in (pair for row in rows[:5] for pair in zip(names, row, strict=True)):
            for found in value[:5] if isinstance(value, list) else [value]:
                if isinstance(found, int) and not isinstance(found, bool):
                    self._keep(function, name, found)

    def _keep(self, function: str, name: str, found: int) -> None:
        kept = {"token": self.tokens, "open_session": self.sessions, "create_batch": self.batches}
        of_function = {"queue_id": self.queues, "create_queue": self.queues} | kept
        held = of_function.get(function) or kept.get(name)
        if held is None and (name in ("id", "ids") or function.startswith("put")):
            held = self.tasks
        if held is not None:
            held.append(found)
            del held[:-30]


@dataclass
class Fuzz:
    """A run: `faults` has what was found, `codes` the answers by SQLSTATE, None being success."""

    victim: Victim
    callers: list[Caller]
    watch: Steady
    random: random.Random
    faults: list[str] = field(default_factory=list)
    codes: Counter[str | None] = field(default_factory=Counter)
    functions: Counter[str] = field(default_factory=Counter)
    calls: int = 0
    pressed: int = 0  # calls under contention, or with an old snapshot

    def __post_init__(self) -> None:
        self._signatures = self.victim.owner.execute(SIGNATURES, [[caller.role for caller in self.callers]]).fetchall()
        self._views = [name for (name,) in self.victim.owner.execute(VIEWS)]
        self._known = documented()
        self._before = self.kept()
        self.victim.owner.execute(SCENE.format(victim=self.victim.roles["victim"]))
        queue, *tasks = [id for (id,) in self.victim.owner.execute(HIDDEN)]
        self._theirs = [queue, *(int(self.victim.names[name]) for name in ("me", "q", "batch", "payload"))]
        self._tasks = [*tasks, *tasks, *(int(self.victim.names[task]) for task in TASKS)]
        self._foreign = set(self._before)

    # --- rounds

    def run(self, calls: int) -> None:
        while self.calls < calls:
            self.round()

    def round(self) -> None:
        caller, rival = self.random.sample(self.callers, 2)
        contended, old = self.random.random() < 0.5, self.random.random() < 0.5
        by_victim = contended and self.random.random() < 0.3
        if old:
            caller.conn.execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM pg_class")
            with contextlib.suppress(psycopg.Error):  # what callers made of the queues may refuse it
                self.victim.owner.execute(CHANGE)
        if contended and not by_victim:
            rival.conn.execute("BEGIN")
            for _ in range(self.random.randint(1, 6)):
                self.call(rival, {"55P03"})
        expected = ({"55P03"} if contended and not by_victim else set()) | ({"40001"} if old else set())
        told = []
        with hold(self.victim) if by_victim else contextlib.nullcontext():
            for _ in range(self.random.randint(5, 25)):
                told.append(self.call(caller, expected))
                self.pressed += contended or old
        if old and not by_victim:
            self.victim_goes_on(told)
        for conn in (caller.conn, rival.conn):
            if conn.info.transaction_status:
                conn.execute("COMMIT" if self.random.random() < 0.5 else "ROLLBACK")
        self.compare(told)

    def victim_goes_on(self, told: list[str]) -> None:
        """A caller's transaction is open: the victim still puts, takes and settles."""
        try:
            self.victim.self.execute("""SET lock_timeout = '1s'; SELECT pgqueue.put('waldo', '"xyzzy"');
                SELECT pgqueue.ack(id, token) FROM pgqueue.take('waldo'); RESET lock_timeout""")
        except psycopg.Error as error:
            self.faults.append(f"the victim was stopped: {error} after {told}")

    def compare(self, told: list[str]) -> None:
        """The victim's rows are as they were, and no row was added to its queues."""
        after = self.kept()
        if gone := self._before - after:
            self.faults.append(f"the victim's rows changed: {sorted(gone)[:3]}, by one of:\n  " + "\n  ".join(told))
            self._before -= gone
        added = {row for row in after - self._foreign if f'"queue_id":{self.victim.names["q"]},' in row}
        if added:
            self.faults.append(f"rows were added: {sorted(added)[:3]}, by one of:\n  " + "\n  ".join(told))
        self._foreign |= added

    def kept(self) -> set[str]:
        """The victim's rows. What roles that share may change, by their right, is left out."""
        return {ALLOWED.sub("", row) for row in self.victim.rows() if not CHANGING.match(row)}

    # --- calls

    def call(self, caller: Caller, expected: set[str]) -> str:
        """Make a random call, which besides the documented SQLSTATEs may have the `expected` ones. Returns its text."""
        name, statement, args = self.statement(caller)
        self.calls += 1
        self.functions[name] += 1
        told = f"{caller.kind} {sorted(expected)}: {statement} {args!r:.600}"
        seconds = []
        while not seconds or (seconds[-1] > LONGEST and len(seconds) < 3):
            began = time.time()
            code, answer = self.answer(caller, name, statement, args)
            ended = time.time()
            seconds.append(ended - began - self.watch.lost(began, ended))
        if seconds[-1] > LONGEST:
            self.faults.append(f"{seconds} s: {told}")
        self.codes[code] += 1
        if code is not None and code not in self._known | expected:
            self.faults.append(f"{code} {answer}: {told}")
        self.faults += [f"it shows {shown}: {answer[:2000]}: {told}" for shown in self.leaks(caller, name, answer)]
        return f"{told} -> {code} {answer[:80]}"

    def answer(self, caller: Caller, name: str, statement: str, args: list[Any]) -> tuple[str | None, str]:
        conn = caller.conn
        try:
            with conn.transaction():
                cursor = conn.execute(statement, args)
                rows = cursor.fetchall() if cursor.description else []
            caller.learn(name, [column.name for column in cursor.description or []], rows)
            return None, str(rows)
        except psycopg.Error as error:
            told = error.diag
            return error.sqlstate or "none", " ".join(
                filter(None, (told.message_primary, told.message_detail, told.message_hint, told.context))
            )

    def leaks(self, caller: Caller, name: str, answer: str) -> Iterator[str]:
        """Marks of the victim's data, holders and shared things, and the name that no caller can know."""
        shares = caller.kind in ("user", "share")
        if SECRET in answer:
            yield "data"
        if SHARED in answer and not shares:
            yield "what is shared"
        if HOLDER in answer and caller.kind != "monitor" and not (shares and "node" in name):  # of an ephemeral node
            yield "a holder"
        if NAME in answer and caller.kind != "monitor":
            yield "a name"
        if self.victim.names["claim"] in answer:
            yield "a token"

    def statement(self, caller: Caller) -> tuple[str, str, list[Any]]:
        if self.random.random() < 0.08:
            view = self.random.choice(self._views)
            return view, f"SELECT * FROM pgqueue.{view}", []
        of_role = [signature for signature in self._signatures if caller.role in signature[-1]]
        signatures = of_role if of_role and self.random.random() < 0.95 else self._signatures
        name, required, names, types, _ = self.random.choice(signatures)
        given = [
            (argument, type)
            for n, (argument, type) in enumerate(zip(names, types, strict=True))
            if argument and (n < required or self.random.random() < 0.25)
        ]
        arguments = ", ".join(f"{argument} => %s::{type}" for argument, type in given)
        return name, f"SELECT * FROM pgqueue.{name}({arguments})", [self.value(caller, *of) for of in given]

    def value(self, caller: Caller, name: str, type: str) -> Any:
        if self.random.random() < 0.04:
            return None
        if type.endswith("[]"):
            if self.random.random() < 0.05:
                return self.random.choice([[], [None]])
            one = name.removesuffix("s")
            return [self.value(caller, one, type[:-2]) for _ in range(self.random.choice([1, 1, 2, 3, 8]))]
        return self.random.choice(self.pool(caller, name, type))

    def pool(self, caller: Caller, name: str, type: str) -> list[Any]:
        """The values to draw from: right ones, the victim's, and wrong ones."""
        names = self.victim.names
        draw = self.random.random()
        if type == "text":
            if name in ("queue", "name", "new_name", "from_queue", "key") and draw < 0.6:
                return OWN
            return THEIRS if draw < 0.8 else WORDS
        if type in ("integer", "bigint"):
            known = {"session": caller.sessions, "resume": caller.sessions, "token": caller.tokens, "id": caller.tasks,
                     "after": caller.tasks, "batch": caller.batches, "queue_id": caller.queues}.get(name)  # fmt: skip
            if draw < 0.5 and known:
                return [id for id in known if type == "bigint" or abs(id) < 2**31] or INTEGERS
            if draw < 0.85 and "token" not in name:
                return self._tasks if type == "bigint" and name in ("id", "after") else self._theirs
            return BIGINTS if type == "bigint" else INTEGERS
        if type == "regrole":
            return [caller.role, self.victim.roles["victim"], "pg_monitor"]
        if type == "uuid":
            return ["00000000-0000-0000-0000-000000000000", names["identity"].strip("'")]
        if type == "jsonb" and name in ("data", "puts", "items", "runs") and draw < 0.6:
            return [json for json in JSONS if json.startswith("[{")]
        pools: dict[str, list[Any]] = {
            "interval": INTERVALS, "jsonb": JSONS, "boolean": [True, False], "double precision": FLOATS,
        }  # fmt: skip
        return TIMES if "timestamp" in type else pools.get(type, [None])


@contextlib.contextmanager
def fuzzing(dsn: str, victim: Victim, seed: int) -> Iterator[Fuzz]:
    """The scene, and connections of all callers."""
    with contextlib.ExitStack() as stack:
        callers = []
        for kind in KINDS:
            conn = stack.enter_context(
                psycopg.connect(dsn, user=victim.roles[kind], password=PASSWORD, autocommit=True)
            )
            conn.adapters.register_loader("jsonb", TextLoader)  # Python does not hold all of it
            conn.execute(f"SET lock_timeout = '{LOCK_TIMEOUT}'; SET statement_timeout = '10s'")
            callers.append(Caller(kind, victim.roles[kind], conn))
        yield Fuzz(victim, callers, stack.enter_context(steady(dsn)), random.Random(seed))
