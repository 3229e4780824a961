"""What each verb does to a task in each state: real calls, in a transaction that is rolled back.

tools/verbs.py writes docs/reference/verbs.md from this table, and tests/sql/test_verb_table.py compares it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import psycopg
from statements import put, row, rows, value
from stepping import die

WRONG = 1  # a token that no claim gets


@dataclass(frozen=True)
class Subject:
    """A task, its queue, and the token with which its caller settles it."""

    queue: str
    id: int
    token: int = WRONG


class Scene:
    """A database with three takers: `me` makes all calls, `other` holds what another one has, a third one dies."""

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self.me, self.other = self._taker(), self._taker()
        self.made = 0

    def _taker(self) -> psycopg.Connection:
        conn = psycopg.connect(self.dsn, autocommit=True)
        conn.execute("SELECT pgqueue.open_session(grace => '0')")
        return conn

    def close(self) -> None:
        self.me.close()
        self.other.close()

    def queue(self, **options: Any) -> str:
        """A new queue with these options."""
        self.made += 1
        name = f"q{self.made}"
        named = "".join(f", {option} => %s" for option in options)
        self.me.execute(f"SELECT pgqueue.create_queue('{name}'{named})", list(options.values()))
        return name

    def ready(self, options: dict[str, Any] | None = None, **of_put: Any) -> Subject:
        queue = self.queue(**options or {})
        return Subject(queue, put(self.me, queue, **of_put))

    def taken(
        self, options: dict[str, Any] | None = None, by: psycopg.Connection | None = None, **of_put: Any
    ) -> Subject:
        subject = self.ready(options, **of_put)
        ((id, token),) = rows(by or self.me, "SELECT id, token FROM pgqueue.take(%s)", subject.queue)
        assert id == subject.id
        return Subject(subject.queue, id, token if by is None else WRONG)

    def late(self, options: dict[str, Any] | None = None) -> Subject:
        """Its time to run is over, and a tick has given it back."""
        subject = self.taken(options, ttr="1 h")
        self._wait(subject)
        self.me.execute("SELECT pgqueue._promote(id) FROM pgqueue.queue WHERE name = %s", [subject.queue])
        return subject

    def _wait(self, subject: Subject) -> None:
        """As if two hours had passed for this task."""
        self.me.execute("UPDATE pgqueue.task SET expires_at = expires_at - interval '2 h' WHERE id = %s", [subject.id])
        self.me.execute("UPDATE pgqueue.take SET deadline = deadline - interval '2 h' WHERE task_id = %s", [subject.id])

    def orphaned(self, options: dict[str, Any] | None = None) -> Subject:
        """Its taker died."""
        doomed = self._taker()
        subject = self.taken(options, by=doomed)
        die(doomed, self.me)
        self.me.execute("SELECT FROM pgqueue.sweep()")
        return subject

    def settled(self, subject: Subject, verb: str) -> Subject:
        """After this call of its holder, which has no take of it any more."""
        self.me.execute(f"SELECT FROM pgqueue.{verb}", {"id": subject.id, "token": subject.token})
        return subject

    def behind(self) -> Subject:
        """The second task of a lane, of which the first is taken by another."""
        queue = self.queue()
        put(self.me, queue, lane="lane")
        second = put(self.me, queue, lane="lane")
        self.other.execute("SELECT FROM pgqueue.take(%s)", [queue])
        return Subject(queue, second)

    def limited(self) -> Subject:
        """The second task of a queue that has one task at a time, and another has taken it."""
        queue = self.queue()
        self.me.execute("SELECT pgqueue.set_limit(%s, concurrency => 1)", [queue])
        put(self.me, queue)
        second = put(self.me, queue)
        self.other.execute("SELECT FROM pgqueue.take(%s)", [queue])
        return Subject(queue, second)

    def dependent(self) -> Subject:
        """It waits for another task."""
        queue = self.queue()
        first = put(self.me, queue, delay="1 h")
        flow = "SELECT id FROM pgqueue.put_flow(%s, '1', after => ARRAY [%s::bigint])"
        return Subject(queue, value(self.me, flow, queue, first))

    def expired(self) -> Subject:
        subject = self.ready(ttl="1 h")
        self._wait(subject)
        return subject

    def overdue(self) -> Subject:
        subject = self.taken(ttr="1 h")
        self._wait(subject)
        return subject


ONCE = {"max_takes": 1}
KEEP = {"keep_done": "1 h"}
FAIL = "release(%(id)s, %(token)s, error => 'why')"
RETRY = "release(%(id)s, %(token)s, error => 'why', delay => '1 h')"
BURY = "bury(%(id)s, %(token)s, error => 'why')"
CANCEL = "cancel(%(id)s)"

CONDITIONS: dict[str, Callable[[Scene], Subject]] = {
    "ready": lambda at: at.ready(),
    "ready: it failed": lambda at: at.settled(at.taken(), FAIL),
    "ready: its time to run was over": lambda at: at.late(),
    "ready: its taker died": lambda at: at.orphaned(),
    "ready: its time to live is over": lambda at: at.expired(),
    "delayed": lambda at: at.ready(delay="1 h"),
    "delayed: it failed": lambda at: at.settled(at.taken(), RETRY),
    "taken by the caller": lambda at: at.taken(),
    "taken by the caller, the time to run is over": lambda at: at.overdue(),
    "taken by another": lambda at: at.taken(by=at.other),
    "buried": lambda at: at.settled(at.taken(), BURY),
    "buried: attempts used up": lambda at: at.settled(at.taken(ONCE), FAIL),
    "buried: its time to run was over": lambda at: at.late(ONCE),
    "buried: its taker died": lambda at: at.orphaned(ONCE),
    "buried, its lane is taken": lambda at: at.settled(at.behind(), "bury(%(id)s)"),
    "buried, its limit is reached": lambda at: at.settled(at.limited(), "bury(%(id)s)"),
    "buried, it waited for another task": lambda at: at.settled(at.dependent(), "bury(%(id)s)"),
    "blocked: its lane is taken": lambda at: at.behind(),
    "waiting: its limit is reached": lambda at: at.limited(),
    "waiting: for another task": lambda at: at.dependent(),
    "cancelling: taken by the caller": lambda at: at.settled(at.taken(), CANCEL),
    "cancelling: taken by another": lambda at: at.settled(at.taken(by=at.other), CANCEL),
    "done, and kept": lambda at: at.settled(at.taken(KEEP), "ack(%(id)s, %(token)s)"),
    "cancelled": lambda at: at.settled(at.ready(), CANCEL),
    "missing": lambda at: Subject(at.queue(), 1 << 60),
}

SETTLING = {
    "ack": "problem FROM pgqueue.ack(%(id)s, %(token)s)",
    "release": "problem FROM pgqueue.release(%(id)s, %(token)s)",
    "release, with a delay": "problem FROM pgqueue.release(%(id)s, %(token)s, delay => '1 h')",
    "release, with an error": "problem FROM pgqueue.release(%(id)s, %(token)s, error => 'why')",
    "requeue": "problem, new_id FROM pgqueue.requeue(%(id)s, %(token)s)",
    "touch": "problem FROM pgqueue.touch(%(id)s, %(token)s)",
    "bury": "problem FROM pgqueue.bury(%(id)s, %(token)s)",
    "fail": "problem FROM pgqueue.fail(%(id)s, %(token)s, 'why')",
    "ack_many": "(SELECT problem FROM pgqueue.ack_many(%(ids)s, %(tokens)s))",
    "release_many": "(SELECT problem FROM pgqueue.release_many(%(ids)s, %(tokens)s))",
}
BY_ID = {
    "take_id": "problem FROM pgqueue.take_id(%(id)s)",
    "kick_task": "problem FROM pgqueue.kick_task(%(id)s)",
    "bury, without a token": "problem FROM pgqueue.bury(%(id)s)",
    "cancel": "problem FROM pgqueue.cancel(%(id)s)",
    "delete": "CASE WHEN NOT d THEN 'false' END FROM pgqueue.delete(%(id)s) d",
    "delete_strict": "problem FROM pgqueue.delete_strict(%(id)s)",
    "put_again": "CASE WHEN n IS NULL THEN 'not found' END, n FROM pgqueue.put_again(%(id)s) n",
}
OF_QUEUES = {
    "take": "NULL::text FROM pgqueue.take(%(queue)s)",
    "pop": "NULL::text FROM pgqueue.pop(%(queue)s)",
    "kick": "NULL::text FROM pgqueue.kick(%(queue)s)",
    "kick, with delayed": "NULL::text FROM pgqueue.kick(%(queue)s, delayed => true)",
    "release_all": "NULL::text FROM pgqueue.release_all(%(queue)s)",
    "truncate_queue": "NULL::text FROM pgqueue.truncate_queue(%(queue)s)",
    "take, after pause_queue": "NULL::text FROM pgqueue.pause_queue(%(queue)s, '1 h'), pgqueue.take(%(queue)s)",
    "take, after drain_queue": "NULL::text FROM pgqueue.drain_queue(%(queue)s), pgqueue.take(%(queue)s)",
}
TABLES = {
    "Settling": SETTLING,
    "By the id": BY_ID,
    "Of a queue": OF_QUEUES,
}

SEEN = "SELECT state, attempts, session = pgqueue.own_session() FROM pgqueue.tasks WHERE id = %s"


def seen(conn: psycopg.Connection, id: int) -> tuple[str, int]:
    """A task's state in the words of CONDITIONS, and its failed attempts."""
    state, attempts, mine = row(conn, SEEN, id) or ("gone", 0, None)
    by = {True: " by the caller", False: " by another", None: ""}[mine if state == "taken" else None]
    return state + by, attempts


def outcome(conn: psycopg.Connection, subject: Subject, before: tuple[str, int], call: str) -> str:
    """What a call does to a task, and answers, as an entry of the table."""
    names: dict[str, Any] = {"id": subject.id, "token": subject.token, "queue": subject.queue}
    names |= {"ids": [subject.id], "tokens": [subject.token]}
    try:
        with conn.transaction(force_rollback=True):
            answer = conn.execute(f"SELECT {call}", names).fetchone()  # type: ignore[arg-type]
            (problem, *new_id) = answer or (None,)
            moved = new_id and new_id[0] not in (None, subject.id)
            after = seen(conn, new_id[0] if moved else subject.id)
    except psycopg.Error as error:
        return f"`{error.sqlstate}`"
    changed = [after[0]] if moved or after[0] != before[0] else []
    if after[0] != "gone" and after[1] != before[1]:
        changed += [f"attempts {after[1]}"]
    return ", ".join([f"*{problem}*"] * bool(problem) + changed) or ("done" if "problem" in call else "—")


def table(dsn: str) -> Iterator[tuple[str, list[str], dict[str, list[str]]]]:
    """Of each group of verbs: its title, the names of the verbs, and by condition what each of them does."""
    scene = Scene(dsn)
    try:
        subjects = {name: make(scene) for name, make in CONDITIONS.items()}
        before = {name: seen(scene.me, subject.id) for name, subject in subjects.items()}
        for title, verbs in TABLES.items():
            entries = {
                name: [outcome(scene.me, subject, before[name], call) for call in verbs.values()]
                for name, subject in subjects.items()
            }
            yield title, list(verbs), entries
    finally:
        scene.close()
