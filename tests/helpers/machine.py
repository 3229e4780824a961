"""The database beside the model of modelling.py, and what has to be equal after every step.

The rules are in test_model.py.

Time is not waited for: deadlines and delays are moved into the past with UPDATE. Sessions are raw connections; one
dies by closing its connection, and a sweep with no grace gives its tasks back. The examples share one database, which
is emptied before each.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import psycopg
from hypothesis.stateful import RuleBasedStateMachine, invariant
from modelling import Model, Modelled, Options
from statements import rows, value

SESSIONS = 2
PAST = "now() - interval '1 s'"

TASKS = """SELECT id, queue, state, priority, attempts, session, data::int, lane, key, releases, timeouts, buries, kicks
             FROM pgqueue.tasks"""
DEATHS = "SELECT id, died_in, reason, count FROM pgqueue.dead_letters"
SUSPECTS = "SELECT id, coalesce(suspect, 0) FROM pgqueue.task WHERE killed_after IS NOT NULL ORDER BY id"
STATS = """SELECT s.calls || jsonb_build_object('waiting', ready + blocked, 'delayed', delayed, 'taken', taken,
                                              'buried', buried, 'kept', kept, 'total', total, 'done', done)
             FROM pgqueue.stats s WHERE queue = %s"""
ORPHANS = """SELECT k.* FROM pgqueue.take k LEFT JOIN pgqueue.task t ON t.id = k.task_id
               LEFT JOIN pgqueue.session s ON s.id = k.session_id
              WHERE t.id IS NULL OR t.state <> 'R' OR t.lane IS DISTINCT FROM k.lane
                 OR s.id IS NULL AND k.session_id <> 0"""


#: The ways to put a task, with the same arguments. Those for many tasks, and as JSON, return an id alone.
WAYS = {
    "put": """SELECT id, state, existed, kept::int
                FROM pgqueue.put('q', to_jsonb(%(data)s::int), %(priority)s, %(delay)s::interval, %(ttr)s::interval,
                                 %(ttl)s::interval, lane => %(lane)s, key => %(key)s, if_exists => %(if_exists)s)""",
    "run_at": """SELECT id, state, existed, kept::int
                   FROM pgqueue.put('q', to_jsonb(%(data)s::int), %(priority)s, ttr => %(ttr)s::interval,
                                    ttl => %(ttl)s::interval, lane => %(lane)s, key => %(key)s,
                                    if_exists => %(if_exists)s, sender => gen_random_uuid(),
                                    run_at => clock_timestamp() + %(delay)s::interval)""",
    "flow": """SELECT id, state, existed, kept::int
                 FROM pgqueue.put_flow('q', to_jsonb(%(data)s::int), ARRAY [nextval('pgqueue.task_id_seq')], 'run',
                                       pgqueue.create_batch(), %(priority)s, %(delay)s::interval, %(ttr)s::interval,
                                       %(ttl)s::interval, %(lane)s, %(key)s, %(if_exists)s, gen_random_uuid(),
                                       alone => true)""",
    "many": """SELECT (pgqueue.put_many('q', jsonb_build_array(%(data)s::int), %(priority)s, %(delay)s::interval,
                                        %(ttr)s::interval, %(ttl)s::interval,
                                        CASE WHEN %(lane)s::text IS NOT NULL THEN ARRAY [%(lane)s] END,
                                        CASE WHEN %(key)s::text IS NOT NULL THEN ARRAY [%(key)s] END,
                                        %(if_exists)s)) [1], NULL, NULL, NULL""",
    "json": """SELECT (pgqueue.put_graph(jsonb_build_array(jsonb_build_object(
                          'queue', 'q', 'data', %(data)s::int, 'priority', %(priority)s::int,
                          'delay', extract(epoch FROM %(delay)s::interval),
                          'ttr', extract(epoch FROM %(ttr)s::interval), 'ttl', extract(epoch FROM %(ttl)s::interval),
                          'lane', %(lane)s::text, 'key', %(key)s::text, 'if_exists', %(if_exists)s::text)))) [1],
                      NULL, NULL, NULL""",
}


@dataclass(frozen=True)
class Hold:
    """A take as its taker remembers it, for as long as it likes: it may have been lost meanwhile."""

    id: int
    token: int


def hour(wanted: bool) -> str | None:
    return "1 h" if wanted else None


def same(found: Any, expected: Any) -> None:
    """An assert that shows both; pytest does so for test files only."""
    assert found == expected, f"\n   found {found}\nexpected {expected}"


class Machine(RuleBasedStateMachine):
    """A database and a model that say the same."""

    admin: psycopg.Connection
    dsn: str
    model: Model

    def __init__(self) -> None:
        super().__init__()
        self.admin.execute("TRUNCATE pgqueue.task, pgqueue.take, pgqueue.session, pgqueue.claim, pgqueue.lane_check")
        self.admin.execute("DELETE FROM pgqueue.queue")
        self.sessions: list[tuple[int, psycopg.Connection]] = []
        self.puts = 0
        for _ in range(SESSIONS):
            self.new_session()

    def teardown(self) -> None:
        for _, conn in self.sessions:
            conn.close()

    def new_session(self) -> None:
        conn = psycopg.connect(self.dsn, autocommit=True)
        id = value(conn, "SELECT pgqueue.open_session(grace => '0', label => 'model')")
        self.sessions.append((id, conn))

    def new_queues(self, options: Options) -> None:
        self.model = Model(options)
        query = """SELECT pgqueue.create_queue('q', capacity => %s, max_takes => %s, keep_done => %s::interval,
                                               dead_letter => %s, dead_letter_key => %s), pgqueue.queue_id('dead')"""
        letters = ("", "dead") if options.dead_letter else (None, None)
        self.ask(query, options.capacity, options.max_takes, hour(options.keep_done), *letters)
        self.ask("SELECT pgqueue._fold_deltas(at_once => true)")  # else everything is counted anew at each look

    def ask(self, query: str, *args: Any) -> list[tuple[Any, ...]]:
        return rows(self.admin, query, *args)

    def any(self, *states: str) -> bool:
        return any(task.state in states for task in self.model.tasks.values())

    def known(self, task: Modelled, state: str) -> str:
        """The state that the database gave, unless it is the one that may be late: blocked, for the head of a lane."""
        return "ready" if state == "blocked" and task.in_line and self.model.seen(task) == "ready" else state

    def settle(self, hold: Hold, query: str, *args: Any) -> tuple[Modelled | None, str]:
        """Settle a take with its token: the task, if that counted, and the state that was answered."""
        expected = self.model.refusal(hold.id, hold.token)
        state, problem = self.ask(f"SELECT state, problem FROM pgqueue.{query}", hold.id, hold.token, *args)[0]
        same(problem, expected)
        return (None if problem else self.model.tasks[hold.id]), state

    def settle_many(self, verb: str, held: list[Hold]) -> list[Modelled]:
        """The same for many; the tasks that counted."""
        ids, tokens = [hold.id for hold in held], [hold.token for hold in held]
        refusals = {hold.id: self.model.refusal(hold.id, hold.token) for hold in held}
        counting = {hold.id for hold in held if not self.model.refusal(hold.id, hold.token)}
        refused = self.ask(f"SELECT id, problem FROM pgqueue.{verb}(%s::bigint[], %s::bigint[])", ids, tokens)
        same(dict(refused), {id: problem for id, problem in refusals.items() if id not in counting})
        return [self.model.tasks[id] for id in counting]

    # --- what holds after every step

    @invariant()
    def tasks_agree(self) -> None:
        found = {id: (queue, state, *more) for id, queue, state, *more in self.ask(TASKS)}
        same(sorted(found), sorted(self.model.tasks))
        for id, task in self.model.tasks.items():
            queue, state, *more = found[id]
            session = None if task.late else task.session
            same((queue, self.known(task, state)), (task.queue, self.model.seen(task)))
            same(more, [task.priority, task.attempts, session, task.data, task.lane, task.key, *task.tallies])

    @invariant()
    def stats_agree(self) -> None:
        same(value(self.admin, "SELECT pgqueue._is_counted()"), True)
        for queue in ("q", "dead"):
            same(value(self.admin, STATS, queue), self.model.stats(queue))

    @invariant()
    def deaths_agree(self) -> None:
        deaths = [(id, *death) for id, task in sorted(self.model.tasks.items()) for death in task.deaths]
        same(self.ask(DEATHS), deaths)

    @invariant()
    def suspects_agree(self) -> None:
        same(self.ask(SUSPECTS), [(id, task.suspect) for id, task in sorted(self.model.tasks.items()) if task.marked])

    @invariant()
    def takes_belong_to_tasks_and_sessions(self) -> None:
        same(self.ask(ORPHANS), [])
