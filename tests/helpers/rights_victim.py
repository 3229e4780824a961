"""A victim for the tests of rights: a role with some of everything, whose data has marks for no other role to read."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest
from eventually import eventually
from psycopg import sql
from statements import planned

#: In data, results, errors, keys, lanes and the like: for roles that may look into the queue or take from it.
SECRET = "xyzzy"

#: In the labels of the victim's sessions: for roles that have some verb for the queue, and for monitors.
HOLDER = "plugh"

#: Objects without a queue: for roles that share.
SHARED = "grault"

#: What a role of each kind is granted.
KINDS = {
    "stranger": (),
    "user": ("SELECT pgqueue.grant_to({role})",),
    "other": ("SELECT pgqueue.grant('other', {role})",),
    "put": ("SELECT pgqueue.grant('secret', {role}, '{{put}}')",),
    "take": ("SELECT pgqueue.grant('secret', {role}, '{{take}}')",),
    "look": ("SELECT pgqueue.grant('secret', {role}, '{{look}}')",),
    "manage": ("SELECT pgqueue.grant('secret', {role}, '{{manage}}')",),
    "monitor": ("SELECT pgqueue.grant_monitor({role})",),
}

STATE = """
    SELECT pgqueue.open_session(label => 'plugh:1:session', grace => '1 h');
    SELECT pgqueue.identify();
    SELECT pgqueue.create_queue('secret', listed => true, keep_done => '1 h', metadata => '"xyzzy"');
    SELECT pgqueue.create_queue('secret.source', dead_letter => '', dead_letter_key => 'secret.dead', max_takes => 1);
    SELECT pgqueue.create_queue('secret.own', exclusive => true);
    SELECT pgqueue.put('secret', '"xyzzy result"', priority => -3);
    SELECT pgqueue.finish(id, token, result => '"xyzzy"') FROM pgqueue.take('secret');
    SELECT pgqueue.put('secret', '"xyzzy buried"', priority => -2);
    SELECT pgqueue.fail(id, token, error => 'xyzzy failed') FROM pgqueue.take('secret');
    SELECT pgqueue.put('secret', '"xyzzy cancelled"', priority => -4);
    SELECT pgqueue.cancel(id, 'xyzzy reason') FROM pgqueue.take('secret');
    SELECT pgqueue.put('secret', '"xyzzy claimed"', priority => -2);
    SELECT count(*) FROM pgqueue.claim_messages('secret', 1, '1 h');
    SELECT pgqueue.put('secret', '"xyzzy taken"', priority => -1, lane => 'xyzzy lane');
    SELECT pgqueue.put('secret', '"xyzzy blocked"', priority => -1, lane => 'xyzzy lane');
    SELECT pgqueue.progress(id, token, value => '"xyzzy"'),
           pgqueue.record_step(id, token, name => 'charge', value => '"xyzzy"') FROM pgqueue.take('secret');
    SELECT pgqueue.put('secret', '"xyzzy ready"', key => 'the key', ttr => '1 h');
    SELECT pgqueue.put('secret', '"xyzzy delayed"', delay => '1 h');
    SELECT pgqueue.put_flow('secret', '"xyzzy waiting"',
                            after => ARRAY (SELECT id FROM pgqueue.tasks WHERE data = '"xyzzy ready"'));
    SELECT pgqueue.create_batch('victim batch');
    SELECT pgqueue.put('secret.own', '"xyzzy own"');
    SELECT pgqueue.put('secret.source', '"xyzzy dead"');
    SELECT pgqueue.release(id, token, error => 'xyzzy died') FROM pgqueue.take('secret.source');
    SELECT pgqueue.put('secret.own', '"xyzzy gone"');
    SELECT pgqueue.try_lock('victim lock');
    SELECT pgqueue.create_node('/victim', '"grault"');
    SELECT pgqueue.create_node('/brief', '"grault"', ephemeral => true);
    SELECT pgqueue.declare_exchange('news', 'topic');
    SELECT pgqueue.declare_exchange('own news', 'topic', durable => false);
    SELECT pgqueue.bind('secret', 'news', '#');
    SELECT pgqueue.publish('news', 'a.b', '"xyzzy retained"', retain => true);
    SELECT pgqueue.set_will('', 'secret', '"xyzzy will"');
    SELECT pgqueue.observe(pgqueue.queue_id('secret'));
    SELECT pgqueue.set_limit('secret', job => 'rare', concurrency => 1);
    SELECT pgqueue.set_status('victim status', '"grault"');
    SELECT pgqueue.declare_schedules('plugh', '[{"name": "victim", "queue": "secret", "data": "xyzzy schedule",
        "every": 3600, "options": {"key": "xyzzy key"}}]');
    SELECT pgqueue.register_worker(1, '{secret}', '{send}');
    SELECT pgqueue.count_runs(1, 1, json_build_array(json_build_object('queue', 'secret', 'job', 'send', 'done', 1,
        'waits', array_fill(1, ARRAY [22]), 'runs', array_fill(1, ARRAY [22])))::jsonb);
    SELECT pgqueue.post('victim channel', repeat('grault', 2000));
"""

#: The names in the table of calls, each by a query.
NAMES = {
    "me": "SELECT id FROM pgqueue.session WHERE label ~ 'plugh'",
    "identity": "SELECT quote_literal(identity) FROM pgqueue.session WHERE label ~ 'plugh'",
    "claim": "SELECT token FROM pgqueue.claim",
    "payload": "SELECT id FROM pgqueue.payload",
    "batch": "SELECT id FROM pgqueue.batch",
    "q": "SELECT id FROM pgqueue.queue WHERE name = 'secret'",
    **{
        name: f"SELECT id FROM pgqueue.task WHERE data = '\"xyzzy {name}\"' ORDER BY id LIMIT 1"
        for name in ("ready", "delayed", "taken", "blocked", "buried", "claimed", "dead", "own", "waiting")
    },
    "done": "SELECT task_id FROM pgqueue.result WHERE value IS NOT NULL",
}

#: The victim's transaction that has each row of its own locked.
HOLD = """
    BEGIN; RESET ROLE;
    SELECT count(*) FROM (SELECT FROM pgqueue.queue q WHERE q.name LIKE 'secret%' FOR UPDATE) k;
    SELECT count(*) FROM (SELECT FROM pgqueue.task t JOIN pgqueue.queue q ON q.id = t.queue_id
                           WHERE q.name LIKE 'secret%' FOR UPDATE OF t) k;
    SELECT count(*) FROM (SELECT FROM pgqueue.take k WHERE k.session_id = {me} FOR UPDATE) k;
    SELECT count(*) FROM (SELECT FROM pgqueue.session s WHERE s.id = {me} FOR UPDATE) k;
    SELECT count(*) FROM (SELECT FROM pgqueue.schedule s WHERE s.name = 'victim' FOR UPDATE) k;
    SELECT count(*) FROM (SELECT FROM pgqueue.batch b WHERE b.name = 'victim batch' FOR UPDATE) k;
    SELECT count(*) FROM (SELECT FROM pgqueue.node n WHERE n.path IN ('/victim', '/brief') FOR UPDATE) k;
    SELECT count(*) FROM (SELECT FROM pgqueue.exchange e WHERE e.name = 'own news' FOR UPDATE) k;
    SET ROLE {role};
    SELECT pgqueue.put_flow('secret', '"xyzzy"', batch => {batch})
"""

# Statistics and lists of what is to be looked at again are of no role.
_TABLES = """
    SELECT relname FROM pg_class
     WHERE relnamespace = 'pgqueue'::regnamespace AND relkind = 'r'
       AND relname NOT IN ('counter', 'delta', 'flow_check', 'fold', 'lane_check', 'meter_check', 'oldest', 'recount',
                           'sample', 'history', 'history_mark')
     ORDER BY 1"""

# A cleaning may set seen_at, and deletes a payload a minute later: call() makes it young again.
_PAYLOADS = "(SELECT id, role, size, payload FROM pgqueue.payload)"


@dataclass
class Victim:
    """The victim's database: connections of its owner and of the victim, roles of each kind, values of the names."""

    owner: psycopg.Connection
    self: psycopg.Connection
    roles: dict[str, str]
    names: dict[str, str]
    tables: list[str]

    def rows(self) -> set[str]:
        """Every row of every table, with its table's name."""
        tables = [(name, f"pgqueue.{name}" if name != "payload" else _PAYLOADS) for name in self.tables]
        union = " UNION ALL ".join(f"SELECT '{name} ' || row_to_json(k) FROM {table} k" for name, table in tables)
        return {text for (text,) in planned(self.owner, union)}

    def call(self, kind: str, statement: str, patience: str = "1 s") -> tuple[str | None, str, set[str]]:
        """Call as a role of this kind, and roll back: the SQLSTATE, the answer or error, and the rows after it."""
        state, answer = None, ""
        self.owner.execute("UPDATE pgqueue.payload SET seen_at = clock_timestamp()")
        self.owner.execute(f"BEGIN; SET LOCAL lock_timeout = '{patience}'; SET LOCAL statement_timeout = '20 s'")
        try:
            if kind != "owner":
                self.owner.execute(f"SET LOCAL ROLE {self.roles[kind]}")
            try:
                with self.owner.transaction():
                    for one in statement.split("; "):
                        answer = str(self.owner.execute(one).fetchall())
            except psycopg.Error as error:
                state, answer = error.sqlstate, f"{error.diag.message_primary} {error.diag.message_detail}"
            self.owner.execute("RESET ROLE")
            return state, answer, self.rows()
        finally:
            self.owner.execute("ROLLBACK")
            self.owner.execute("SELECT pg_advisory_unlock_all(), set_config('pgqueue.session', '', false)")


def make_role(owner: psycopg.Connection, options: str = "") -> str:
    name = f"pgqueue_test_{uuid.uuid4().hex[:12]}"
    owner.execute(f"CREATE ROLE {name} {options}")
    return name


def drop_roles(owner: psycopg.Connection, names: list[str]) -> None:
    for name in names:
        owner.execute(sql.SQL("DROP OWNED BY {0}; DROP ROLE {0}").format(sql.Identifier(name)))


@contextmanager
def victim(dsn: str, kinds: Mapping[str, tuple[str, ...]] = KINDS, options: str = "") -> Iterator[Victim]:
    """The victim, beside roles of these kinds, made with these options of CREATE ROLE."""
    with (
        psycopg.connect(dsn, autocommit=True, prepare_threshold=None) as owner,
        psycopg.connect(dsn, autocommit=True, prepare_threshold=None) as self,
    ):
        roles = {kind: make_role(owner, options) for kind in (*kinds, "victim")}
        try:
            owner.execute(f"SELECT pgqueue.grant_to('{roles['victim']}')")
            self.execute(f"SET ROLE {roles['victim']}")
            self.execute(STATE)
            for queue in ("secret", "secret.source", "secret.dead"):
                owner.execute(
                    f"SELECT pgqueue.grant('{queue}', '{roles['victim']}'), pgqueue.restrict_queue('{queue}')"
                )
            for kind, grants in kinds.items():
                for grant in grants:
                    owner.execute(grant.format(role=f"'{roles[kind]}'"))
            owner.execute("SELECT pgqueue.add_server(0, 'service=victim'), pgqueue.clean_up()")
            eventually(lambda: _is_settled(owner))
            names = {name: _value(owner, query) for name, query in NAMES.items()}
            owner.execute(
                "INSERT INTO pgqueue.tally SELECT at, at, queue_id, done, failed, retried, timeouts, cancelled, waited,"
                " ran, 'hour', job, waits, runs FROM pgqueue.tally_part"
            )
            owner.execute(
                "INSERT INTO pgqueue.history SELECT date_trunc('minute', now()), 1, 0, 0, 0, 0, 0, 0, id, 1, 1, 0, 0,"
                " 0, 0, 0, 'm' FROM pgqueue.queue ON CONFLICT DO NOTHING"
            )
            yield Victim(owner, self, roles, names, [name for (name,) in owner.execute(_TABLES).fetchall()])
        finally:
            drop_roles(owner, list(roles.values()))


def _is_settled(conn: psycopg.Connection) -> bool:
    """Whether ticks have no limit to go on with."""
    conn.execute("SELECT pgqueue.promote_all()")
    return conn.execute("SELECT FROM pgqueue.task_limit WHERE changing").rowcount == 0


def _value(conn: psycopg.Connection, query: str) -> Any:
    ((found,),) = conn.execute(query).fetchall()
    return str(found)


@contextmanager
def roles(db: psycopg.Connection) -> Iterator[Callable[..., str]]:
    """Makes roles with a grant, by default of all open queues, and drops them."""
    names: list[str] = []

    def new(grant: str | None = "SELECT pgqueue.grant_to(%s)", options: str = "") -> str:
        names.append(make_role(db, options))
        if grant:
            db.execute(grant.encode(), [names[-1]])
        return names[-1]

    yield new
    drop_roles(db, list(reversed(names)))


def restrict(db: psycopg.Connection, queue: str, *roles: str) -> None:
    db.execute("SELECT pgqueue.queue_id(%s)", [queue])
    for role in roles:
        db.execute("SELECT pgqueue.grant(%s, %s)", [queue, role])
    db.execute("SELECT pgqueue.restrict_queue(%s)", [queue])


def refused(conn: psycopg.Connection, statement: str, *args: Any) -> str:
    with pytest.raises(psycopg.errors.InsufficientPrivilege) as caught:
        conn.execute(statement, args)
    return str(caught.value)


@contextmanager
def hold(aim: Victim) -> Iterator[None]:
    """A transaction of the victim's with its rows locked, which also has put into its batch."""
    conn = aim.self
    conn.execute(HOLD.format(role=aim.roles["victim"], **aim.names))
    yield
    conn.execute("ROLLBACK")
