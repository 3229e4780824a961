"""The table of rights: every public function and view, called by roles of each kind, with the victim as its aim.

A line has the functions' gate, that is, the verbs of which one gives EXECUTE; the verbs that allow the call for the
victim's queue; and what all others get that pass the gate: nothing, or a refusal (42501).
"""

from __future__ import annotations

from dataclasses import dataclass

#: The kinds of roles, in the order of the columns: rights_victim.py has their grants.
COLUMNS = ("stranger", "user", "other", "put", "take", "look", "manage", "monitor", "owner")

_FOUR = ("put", "take", "look", "manage")

#: The kinds that have EXECUTE by a verb.
GATES: dict[str, frozenset[str]] = {
    **{verb: frozenset({"user", "other", "owner", verb}) for verb in _FOUR},
    "share": frozenset({"user", "owner"}),
    "monitor": frozenset({"monitor", "owner"}),
    "client": frozenset({"user", "other", "owner", *_FOUR}),
    "view": frozenset({"user", "other", "owner", "monitor", *_FOUR}),
    "owner": frozenset({"owner"}),
}


@dataclass(frozen=True)
class Call:
    """A statement with the victim's {names}, and for which kinds of roles it is allowed."""

    statement: str
    gate: str
    may: str = "owner"
    others: str = "refused"
    owner: str = ""  # a SQLSTATE, where the owner's own call fails too

    def passes(self, kind: str) -> bool:
        """Whether these roles have EXECUTE, or SELECT."""
        return any(kind in GATES[verb] for verb in self.gate.split())

    def expected(self, kind: str) -> str:
        if self.owner and kind == "owner":
            return self.owner
        if not self.passes(kind):
            return "refused"
        return "allowed" if kind in self.may.split() else self.others


def named(verb: str, statement: str) -> Call:
    """For a queue: refused without the verb."""
    return Call(statement, verb, f"{verb} owner")


def held(statement: str) -> Call:
    """For a task that a session holds: no other role settles it, and the owner has no take either."""
    return Call(statement, "take", "", "nothing")


def seen(statement: str) -> Call:
    """Roles that may look, and monitors, get rows."""
    return Call(statement, "view", "look monitor owner", "nothing")


def shared(statement: str) -> Call:
    """For all that share."""
    return Call(statement, "share", "user owner")


def tick(statement: str) -> Call:
    """The periodic work of each client: it changes nothing of the victim's before it is due."""
    return Call(statement, "client", "", "nothing")


def of_owner(statement: str) -> Call:
    return Call(statement, "owner")


def foreign(gate: str, statement: str) -> Call:
    """With the victim's session: refused to every role but its own, and the owner."""
    return Call(statement, gate, "owner")


#: Of count_runs, with the braces of a format doubled.
_COUNTS = "[" + ", ".join(["1"] * 22) + "]"
RUNS = f'[{{{{"queue": "secret", "job": "j", "done": 1, "waits": {_COUNTS}, "runs": {_COUNTS}}}}}]'

CLUSTER = "6c0d3c4e-8e43-4d0b-9f5c-0e5d9a3a7a51"  # not the victim's

FORGED = "SELECT set_config('pgqueue.session', '{me}', true)"

#: With braces that a second format() leaves alone.
DECLARE = 'SELECT pgqueue.declare_schedules(\'x\', \'[{{{{"name": "{}", "queue": "{}", "every": 60}}}}]\')'

FUNCTIONS: dict[str, list[Call]] = {
    "ack": [held("SELECT pgqueue.ack({taken})"), held("SELECT pgqueue.ack({claimed}, token => 1)")],
    "ack_many": [held("SELECT pgqueue.ack_many('{{{taken},{claimed}}}')")],
    "add_server": [of_owner("SELECT pgqueue.add_server(0, 'service=victim')")],
    "allow_flows": [named("put", "SELECT pgqueue.allow_flows('secret')")],
    "allow_lanes": [named("put", "SELECT pgqueue.allow_lanes('secret')")],
    "alter_queue": [named("manage", "SELECT pgqueue.alter_queue('secret', '{{\"ttl\": \"1 s\"}}')")],
    "arm": [tick("SELECT pgqueue.arm('{{{q}}}')")],
    "arm_again": [tick("SELECT pgqueue.arm_again('{{{q}}}')")],
    "ask_lock": [Call("SELECT pgqueue.ask_lock('victim lock', false, 1, true)", "share", "", "nothing")],
    "await_ends": [tick("SELECT pgqueue.await_ends('{{{taken}}}')")],
    "await_outcome": [
        Call(f"SELECT * FROM pgqueue.await_outcome({{{task}}})", "look", "look owner", "nothing")
        for task in ("done", "ready", "taken", "buried")
    ],
    "bind": [
        Call("SELECT pgqueue.declare_exchange('mine'); SELECT pgqueue.bind('secret', 'mine')", "share"),
        Call("SELECT pgqueue.bind('secret', 'news', 'a.*')", "manage"),  # it asks for share as well
    ],
    "bury": [
        Call("SELECT pgqueue.bury({taken})", "take manage", "manage owner"),
        Call("SELECT pgqueue.bury({ready})", "take manage", "manage owner"),
        Call("SELECT pgqueue.bury({taken}, token => 1)", "take manage", "", "nothing"),
    ],
    "children": [shared("SELECT pgqueue.children('/')")],
    "cancel": [named("manage", "SELECT pgqueue.cancel({ready})"), named("manage", "SELECT pgqueue.cancel({taken})")],
    "cancel_key": [named("manage", "SELECT pgqueue.cancel_key('secret', 'none')")],
    "cancel_many": [named("manage", "SELECT pgqueue.cancel_many('{{{ready},{taken}}}')")],
    "cancelled_takes": [held("SELECT pgqueue.cancelled_takes('{{{taken}}}', '{{1}}')")],
    "claim_messages": [named("take", "SELECT pgqueue.claim_messages('secret')")],
    "clean_up": [tick("SELECT pgqueue.clean_up()")],
    "clear_will": [Call("SELECT pgqueue.clear_will()", "share", "", "nothing")],
    "close_batch": [Call("SELECT pgqueue.close_batch({batch})", "put", others="PQ045")],
    "close_session": [tick("SELECT pgqueue.close_session()")],
    "copy_servers": [
        Call(f"SELECT pgqueue.copy_servers('{CLUSTER}', 9, '[]')", "owner", owner="PQ049"),
    ],
    "count_runs": [named("take", f"SELECT pgqueue.count_runs(1, 1, '{RUNS}')")],
    "count_version": [seen("SELECT v FROM pgqueue.count_version('secret') v WHERE v IS NOT NULL")],
    "create_batch": [Call("SELECT pgqueue.create_batch('x')", "put", "user other put owner")],
    "create_node": [
        Call("SELECT pgqueue.create_node('/victim')", "share", "", "nothing"),
        shared("SELECT pgqueue.create_node('/victim/child')"),
    ],
    "create_queue": [
        Call("SELECT pgqueue.create_queue('secret', if_not_exists => true)", "manage", "", "nothing"),
        Call("SELECT pgqueue.create_queue('mine', dead_letter => '', dead_letter_key => 'secret')", "manage", "owner"),
    ],
    "data_key": [Call("SELECT pgqueue.data_key('1')", "put", "", "nothing")],
    "declare_exchange": [shared("SELECT pgqueue.declare_exchange('news', 'topic')")],
    "declare_limit": [
        Call("SELECT pgqueue.declare_limit('secret', 'job')", "take", "take owner"),
        Call("SELECT pgqueue.declare_limit('secret', 'job', 1)", "take", "owner"),  # it asks for manage as well
    ],
    "declare_schedules": [
        Call(DECLARE.format("mine", "secret"), "put", "put owner"),
        Call(DECLARE.format("victim", "other"), "put"),
        Call("SELECT pgqueue.declare_schedules('victim', '[]')", "put", "put owner", "nothing"),
    ],
    "delete": [named("manage", "SELECT pgqueue.delete({ready})"), named("manage", "SELECT pgqueue.delete({taken})")],
    "delete_batch": [Call("SELECT pgqueue.delete_batch({batch})", "put", others="nothing")],
    "delete_exchange": [Call("SELECT pgqueue.delete_exchange('news')", "share")],
    "delete_message": [
        named("take", "SELECT pgqueue.delete_message('secret', {ready})"),
        Call("SELECT pgqueue.delete_message('secret', {claimed}, 1)", "take", "", "nothing"),
        Call("SELECT pgqueue.delete_message('other', {ready})", "take", "", "nothing"),
    ],
    "delete_messages": [
        named("manage", "SELECT pgqueue.delete_messages('secret', '{{{ready}}}')"),
        Call("SELECT pgqueue.delete_messages('other', '{{{ready}}}')", "manage", "", "nothing"),
    ],
    "delete_node": [Call("SELECT pgqueue.delete_node('/none')", "share", "", "nothing")],
    "delete_queue": [Call("SELECT pgqueue.delete_queue('secret', force => true)", "manage")],  # it is restricted
    "delete_schedule": [Call("SELECT pgqueue.delete_schedule('victim')", "put manage", "manage owner")],
    "delete_status": [shared("SELECT pgqueue.delete_status('victim status')")],
    "delete_strict": [
        Call("SELECT pgqueue.delete_strict({ready})", "take manage", "manage owner"),
        Call("SELECT pgqueue.delete_strict({own})", "take manage", "owner"),
    ],
    "disarm": [tick("SELECT pgqueue.disarm('{{{q}}}')")],
    "stop_hearing": [tick("SELECT pgqueue.stop_hearing('{{{q}}}')")],
    "drain_queue": [named("manage", "SELECT pgqueue.drain_queue('secret')")],
    "drain_queues": [Call("SELECT pgqueue.drain_queues()", "manage")],
    "drop_limit": [named("manage", "SELECT pgqueue.drop_limit('secret', 'rare')")],
    "drop_lock": [Call("SELECT pgqueue.drop_lock(1)", "share", "", "nothing")],
    "due_schedules": [
        Call("SELECT name FROM pgqueue.due_schedules()", "client", "manage owner", "nothing"),
    ],
    "enter_line": [Call("SELECT pgqueue.enter_line('{{{q}}}', '{{1}}')", "take", "", "nothing")],
    "fail": [
        Call("SELECT pgqueue.fail({taken}, error => 'forged')", "take", "owner"),
        held("SELECT pgqueue.fail({taken}, error => 'forged', delay => '1 s')"),
        held("SELECT pgqueue.fail({taken}, token => 1, error => 'forged')"),
    ],
    "find_key": [named("look", "SELECT pgqueue.find_key('secret', 'the key')")],
    "find_tasks": [
        Call(f"SELECT * FROM pgqueue.find_tasks('secret', '{state}')", "look monitor", "look monitor owner")
        for state in ("ready", "taken", "buried")
    ]
    + [
        Call("SELECT * FROM pgqueue.find_tasks('secret.own', 'ready')", "look monitor", "monitor owner"),
    ],
    "put_again": [Call("SELECT pgqueue.put_again({buried})", "manage")],
    "search_tasks": [
        Call("SELECT pgqueue.search_tasks('secret', 'ready')", "look monitor", "look monitor owner"),
        Call("SELECT pgqueue.search_tasks('secret', 'ready', key => 'the key')", "look monitor", "look owner"),
        Call("SELECT pgqueue.search_tasks('secret.own', 'ready')", "look monitor", "monitor owner"),
    ],
    "finish": [held("SELECT pgqueue.finish({taken}, result => '\"forged\"')")],
    "finish_many": [held("SELECT pgqueue.finish_many('{{{taken}}}', results => '[\"forged\"]')")],
    "fire_schedule": [
        Call(
            "SELECT pgqueue.fire_schedule('victim', 1, NULL, ARRAY [clock_timestamp()], NULL)",
            "client",
            "manage owner",
        ),
    ],
    "first_task": [seen(f"SELECT pgqueue.first_task('secret', '{state}')") for state in ("ready", "delayed", "buried")],
    "forget_undo": [tick("SELECT pgqueue.forget_undo(1)")],
    "get_claim": [Call("SELECT pgqueue.get_claim('secret', 1)", "take", "", "nothing")],
    "get_step": [held("SELECT pgqueue.get_step({taken}, name => 'charge')")],
    "get_status": [shared("SELECT pgqueue.get_status('victim status')")],
    "grant": [of_owner("SELECT pgqueue.grant('secret', current_user::regrole)")],
    "grant_monitor": [of_owner("SELECT pgqueue.grant_monitor(current_user::regrole)")],
    "grant_to": [of_owner("SELECT pgqueue.grant_to(current_user::regrole)")],
    "history": [seen("SELECT * FROM pgqueue.history(ARRAY ['secret'])")],
    "identify": [tick("SELECT pgqueue.identify()")],
    "job_runs": [seen("SELECT * FROM pgqueue.job_runs() WHERE queue = 'secret'")],
    "join_group": [shared("SELECT pgqueue.join_group('group')")],
    "act_on_tasks": [
        named("manage", "SELECT pgqueue.act_on_tasks('secret', 'kick', 'buried')"),
        named("manage", "SELECT pgqueue.act_on_tasks('secret', 'delete', 'ready')"),
        Call("SELECT pgqueue.act_on_tasks('secret', 'put_again', 'buried')", "manage"),
    ],
    "kick": [named("manage", "SELECT pgqueue.kick('secret')")],
    "kick_task": [
        named("manage", "SELECT pgqueue.kick_task({buried})"),
        named("manage", "SELECT pgqueue.kick_task({delayed})"),
    ],
    "last_tick": [Call("SELECT pgqueue.last_tick()", "view", "", "nothing")],
    "leave_ends": [tick("SELECT pgqueue.leave_ends('{{{taken}}}')")],
    "leave_line": [tick("SELECT pgqueue.leave_line('{{{q}}}', '{{1}}')")],
    "list_messages": [
        named("look", "SELECT * FROM pgqueue.list_messages('secret', include_claimed => true, include_delayed => true)")
    ],
    "message_stats": [Call("SELECT pgqueue.message_stats('secret')", "look monitor", "look monitor owner", "nothing")],
    "neighbours": [
        Call("SELECT * FROM pgqueue.neighbours({ready})", "look monitor", "look monitor owner", "nothing"),
    ],
    "newest_tasks": [
        Call(
            "SELECT id FROM pgqueue.newest_tasks() k(id) WHERE id = {ready}",
            "look monitor",
            "look monitor owner",
            "nothing",
        )
    ],
    "next_due": [Call("SELECT pgqueue.next_due('{{secret}}')", "client", "take owner", "nothing")],
    "tick_ages": [tick("SELECT pgqueue.tick_ages()")],
    "observe": [named("look", "SELECT pgqueue.observe({q})")],
    "open_session": [tick("SELECT pgqueue.open_session()")],
    "outcome": [
        Call(f"SELECT * FROM pgqueue.outcome({{{task}}})", "look", "look owner", "nothing")
        for task in ("done", "ready", "taken", "buried")
    ],
    "own_id": [Call("SELECT pgqueue.own_id({ready})", "view", "", "nothing")],
    "own_session": [Call("SELECT pgqueue.own_session()", "view", "", "nothing")],
    "pass_on": [tick("SELECT pgqueue.pass_on('{{{q}}}')")],
    "pause_queue": [named("manage", "SELECT pgqueue.pause_queue('secret', '1 h')")],
    "pause_schedule": [Call("SELECT pgqueue.pause_schedule('victim')", "put manage", "manage owner")],
    "pop": [
        named("take", "SELECT * FROM pgqueue.pop('secret')"),
        Call("SELECT * FROM pgqueue.pop('secret.own')", "take", owner="PQ033"),
    ],
    "post": [shared("SELECT pgqueue.post('victim channel', 'hello')")],
    "predecessors": [Call("SELECT pgqueue.predecessors({waiting})", "take look", "look owner")],
    "progress": [held("SELECT pgqueue.progress({taken}, value => '\"forged\"')")],
    "promote_all": [tick("SELECT pgqueue.promote_all()")],
    "publish": [
        named("put", "SELECT pgqueue.publish('', 'secret', '1')"),
        Call("SELECT pgqueue.publish('news', 'a.b', '1')", "put", "put owner", "nothing"),  # it is left out
    ],
    "put_flow": [
        named("put", "SELECT * FROM pgqueue.put_flow('secret', '1')"),
        Call("SELECT * FROM pgqueue.put_flow('mine', '1', after => ARRAY [{ready}])", "put", "owner"),
    ],
    "put_flow_many": [named("put", "SELECT pgqueue.put_flow_many('secret', '[1, 2]')")],
    "put_graph": [named("put", 'SELECT pgqueue.put_graph(\'[{{"queue": "secret", "data": 1}}]\')')],
    "put": [
        named("put", "SELECT * FROM pgqueue.put('secret', '1')"),
        named("put", "SELECT * FROM pgqueue.put('secret', '1', key => 'the key')"),
        named("put", "SELECT * FROM pgqueue.put('secret', '1', key => 'the key', if_exists => 'replace')"),
    ],
    "put_many": [
        named("put", "SELECT pgqueue.put_many('secret', '[1]')"),
        named("put", "SELECT pgqueue.put_many('secret', '[1]', lanes => '{{x}}', keys => '{{the key}}')"),
    ],
    "queue_id": [Call("SELECT pgqueue.queue_id('secret')", "client", "", "nothing")],
    "queue_rates": [
        seen("SELECT * FROM pgqueue.queue_rates('{{secret}}')"),
        seen("SELECT * FROM pgqueue.queue_rates() WHERE queue = 'secret'"),
    ],
    "queue_stats(text)": [
        seen("SELECT * FROM pgqueue.queue_stats('secret')"),
        seen("SELECT * FROM pgqueue.queue_stats() WHERE queue = 'secret'"),
    ],
    "queue_stats(text[])": [
        seen("SELECT * FROM pgqueue.queue_stats('{{secret}}'::text[])"),
        seen("SELECT * FROM pgqueue.queue_stats(NULL::text[]) WHERE queue = 'secret'"),
    ],
    "record_step": [held("SELECT pgqueue.record_step({taken}, name => 'x', value => '1')")],
    "register_worker": [named("take", "SELECT pgqueue.register_worker(1, '{{secret}}')")],
    "release": [held("SELECT pgqueue.release({taken})"), held("SELECT pgqueue.release({claimed}, token => 1)")],
    "release_all": [named("manage", "SELECT pgqueue.release_all('secret')")],
    "release_claim": [Call("SELECT pgqueue.release_claim('secret', 1)", "take", "", "nothing")],
    "release_many": [held("SELECT pgqueue.release_many('{{{taken},{claimed}}}')")],
    "rename_queue": [
        # A role that may manage this queue only cannot give it a name that no grant of its own has.
        Call("SELECT pgqueue.rename_queue('secret', 'mine')", "manage", "owner"),
    ],
    "renew_claim": [Call("SELECT pgqueue.renew_claim('secret', 1)", "take", "", "nothing")],
    "remove_server": [Call("SELECT pgqueue.remove_server(0)", "owner", owner="PQ049")],
    "requeue": [held("SELECT pgqueue.requeue({taken})")],
    "restrict_queue": [of_owner("SELECT pgqueue.restrict_queue('secret', false)")],
    "resume_schedule": [Call("SELECT pgqueue.resume_schedule('victim')", "put manage", "manage owner")],
    "revoke": [of_owner("SELECT pgqueue.revoke('secret', current_user::regrole)")],
    "revoke_from": [of_owner("SELECT pgqueue.revoke_from(current_user::regrole)")],
    "revoke_monitor": [of_owner("SELECT pgqueue.revoke_monitor(current_user::regrole)")],
    "run_bounds": [Call("SELECT pgqueue.run_bounds()", "view", "", "nothing")],
    "run_schedule": [Call("SELECT pgqueue.run_schedule('victim')", "put manage", "manage owner")],
    "servers": [
        Call("SELECT * FROM pgqueue.servers()", "client", "user other put take look manage owner", "nothing"),
    ],
    "server_number": [Call("SELECT pgqueue.server_number()", "view", "", "nothing")],
    "session_deadline": [tick("SELECT pgqueue.session_deadline(NULL)")],
    "set_limit": [named("manage", "SELECT pgqueue.set_limit('secret', concurrency => 1)")],
    "set_quota": [of_owner("SELECT pgqueue.set_quota('queues', 1000)")],
    "set_node": [Call("SELECT pgqueue.set_node('/none', '1')", "share", "", "nothing")],
    "set_server": [Call("SELECT pgqueue.set_server(1)", "owner", owner="PQ048")],
    "set_server_state": [of_owner("SELECT pgqueue.set_server_state(0, 'active')")],
    "set_schedule": [
        named("put", "SELECT pgqueue.set_schedule('mine', 'secret', every => '1 h')"),
        Call("SELECT pgqueue.set_schedule('victim', 'other', every => '1 h')", "put"),
    ],
    "set_status": [shared("SELECT pgqueue.set_status('victim status', '1')")],
    "set_will": [Call("SELECT pgqueue.set_will('', 'nowhere', '1')", "share", "", "nothing")],
    "stored_payload": [shared("SELECT pgqueue.stored_payload({payload})")],
    "sweep": [tick("SELECT pgqueue.sweep()")],
    "tick": [tick("SELECT pgqueue.tick()")],
    "take": [
        named("take", "SELECT * FROM pgqueue.take('secret')"),
        Call("SELECT * FROM pgqueue.take('secret.own')", "take", owner="PQ033"),
    ],
    "take_id": [
        named("take", "SELECT pgqueue.take_id({ready})"),
        Call("SELECT pgqueue.take_id({own})", "take", owner="PQ033"),
    ],
    "take_many": [named("take", "SELECT * FROM pgqueue.take_many('{{secret}}', 5)")],
    "take_or_listen": [named("take", "SELECT * FROM pgqueue.take_or_listen('{{secret}}')")],
    "time_left": [held("SELECT pgqueue.time_left('{{{taken}}}', '{{1}}')")],
    "touch": [held("SELECT pgqueue.touch({taken})")],
    "move_in": [Call("SELECT pgqueue.move_in('secret', '{{}}')", "manage")],
    "move_out": [Call("SELECT * FROM pgqueue.move_out('secret')", "manage")],
    "moving_lanes": [Call("SELECT pgqueue.moving_lanes('secret')", "manage")],
    "staying": [named("manage", "SELECT * FROM pgqueue.staying('secret')")],
    "truncate_queue": [named("manage", "SELECT pgqueue.truncate_queue('secret')")],
    "try_lock": [Call("SELECT pgqueue.try_lock('victim lock')", "share", "", "nothing")],
    "unbind": [Call("SELECT pgqueue.unbind('secret', 'news', '#')", "manage")],  # it asks for share as well
    "undo_take": [tick("SELECT pgqueue.undo_take(1)")],
    "unlock": [Call("SELECT pgqueue.unlock('victim lock')", "share", "", "nothing")],
    "unregister_worker": [Call("SELECT pgqueue.unregister_worker(1)", "take", "", "nothing")],
    "unobserve": [Call("SELECT pgqueue.unobserve({q})", "look", "", "nothing")],
    "urgent_priority": [named("put", "SELECT pgqueue.urgent_priority('secret')")],
    "watch_node": [shared("SELECT pgqueue.watch_node('/victim')")],
    "why(bigint)": [seen(f"SELECT pgqueue.why({{{task}}})") for task in ("taken", "buried", "blocked", "ready")],
    "why(text)": [seen("SELECT pgqueue.why('secret')")],
}

_ALL = "user other put take look manage monitor owner"

VIEWS: dict[str, list[Call]] = {
    "attempts": [seen("SELECT * FROM pgqueue.attempts WHERE queue = 'secret'")],
    "batch_failures": [Call("SELECT * FROM pgqueue.batch_failures", "view", "", "nothing")],
    "batches": [Call("SELECT * FROM pgqueue.batches", "view", "monitor owner", "nothing")],
    "batch_stats": [
        Call("SELECT * FROM pgqueue.batch_stats WHERE batches > 0", "view", "monitor owner", "nothing"),
        Call("SELECT * FROM pgqueue.batch_stats", "view", _ALL),
    ],
    "audit": [Call("SELECT * FROM pgqueue.audit WHERE queue = 'secret'", "view", "monitor owner", "nothing")],
    "bindings": [seen("SELECT * FROM pgqueue.bindings WHERE queue = 'secret'")],
    "cancellations": [seen("SELECT * FROM pgqueue.cancellations WHERE queue = 'secret'")],
    "dead_letters": [Call("SELECT * FROM pgqueue.dead_letters", "view", "monitor owner", "nothing")],
    "dependencies": [seen("SELECT * FROM pgqueue.dependencies WHERE queue = 'secret'")],
    "exchanges": [Call("SELECT * FROM pgqueue.exchanges", "view", "user monitor owner", "nothing")],
    "health": [
        Call("SELECT * FROM pgqueue.health WHERE detail ~ 'secret'", "view", "look monitor owner", "nothing"),
        Call("SELECT * FROM pgqueue.health", "view", _ALL),
    ],
    "job_history": [seen("SELECT * FROM pgqueue.job_history WHERE queue = 'secret'")],
    "job_stats": [seen("SELECT * FROM pgqueue.job_stats WHERE queue = 'secret'")],
    "limits": [seen("SELECT * FROM pgqueue.limits WHERE queue = 'secret'")],
    "quotas": [Call("SELECT * FROM pgqueue.quotas", "view", _ALL)],
    "listeners": [Call("SELECT * FROM pgqueue.listeners", "view", _ALL)],
    "locks": [Call("SELECT * FROM pgqueue.locks", "view", "user monitor owner", "nothing")],
    "nodes": [Call("SELECT * FROM pgqueue.nodes", "view", "user monitor owner", "nothing")],
    "privileges": [
        Call("SELECT * FROM pgqueue.privileges WHERE role <> current_user", "view", "monitor owner", "nothing")
    ],
    "queue_history": [seen("SELECT * FROM pgqueue.queue_history WHERE queue = 'secret'")],
    "queues": [seen("SELECT * FROM pgqueue.queues WHERE name = 'secret'")],
    "rates": [seen("SELECT * FROM pgqueue.rates WHERE queue = 'secret'")],
    "results": [seen("SELECT * FROM pgqueue.results WHERE queue = 'secret'")],
    "schedules": [seen("SELECT * FROM pgqueue.schedules WHERE name = 'victim'")],
    "snapshots": [Call("SELECT * FROM pgqueue.snapshots", "view", _ALL)],
    "stats": [seen("SELECT * FROM pgqueue.stats WHERE queue = 'secret'")],
    "statuses": [Call("SELECT * FROM pgqueue.statuses", "view", "user owner", "nothing")],
    "steps": [seen("SELECT * FROM pgqueue.steps WHERE queue = 'secret'")],
    "tables": [Call("SELECT * FROM pgqueue.tables", "view", _ALL)],
    "takes": [seen("SELECT id, queue, holder, lane FROM pgqueue.takes WHERE queue = 'secret'")],
    "tasks": [seen("SELECT * FROM pgqueue.tasks WHERE queue = 'secret'")],
}

#: By the ownership of sessions, and of all that hangs on them.
OWNED: dict[str, list[Call]] = {
    "ack": [
        foreign("take", "SELECT pgqueue.ack({taken}, session => {me})"),
        foreign("take", f"{FORGED}; SELECT pgqueue.ack({{taken}})"),
    ],
    "ack_many": [foreign("take", "SELECT pgqueue.ack_many('{{{taken}}}', session => {me})")],
    "ask_lock": [Call(f"{FORGED}; SELECT pgqueue.ask_lock('victim lock', false, 1, false)", "share", "", "nothing")],
    "claim_messages": [foreign("take", "SELECT pgqueue.claim_messages('secret.own', session => {me})")],
    "clear_will": [foreign("share", "SELECT pgqueue.clear_will({me})")],
    "close_session": [Call("SELECT pgqueue.close_session({me})", "client", owner="PQ002")],
    "create_node": [foreign("share", "SELECT pgqueue.create_node('/x', ephemeral => true, session => {me})")],
    "create_queue": [foreign("manage", "SELECT pgqueue.create_queue('x', exclusive => true, session => {me})")],
    "declare_exchange": [
        foreign("share", "SELECT pgqueue.declare_exchange('x', durable => false, session => {me})"),
    ],
    "delete_exchange": [foreign("share", "SELECT pgqueue.delete_exchange('own news')")],
    "delete_node": [
        foreign("share", "SELECT pgqueue.delete_node('/victim')"),
        foreign("share", "SELECT pgqueue.delete_node('/brief')"),
    ],
    "delete_strict": [foreign("take manage", "SELECT pgqueue.delete_strict({taken}, session => {me})")],
    "finish": [foreign("take", "SELECT pgqueue.finish({taken}, session => {me}, result => '1')")],
    "finish_many": [foreign("take", "SELECT pgqueue.finish_many('{{{taken}}}', session => {me}, results => '[1]')")],
    "get_step": [foreign("take", "SELECT pgqueue.get_step({taken}, session => {me}, name => 'charge')")],
    "identify": [
        foreign("client", "SELECT pgqueue.identify(session => {me})"),
        Call("SELECT pgqueue.identify({identity})", "client", "", "PQ070"),
    ],
    "join_group": [foreign("share", "SELECT pgqueue.join_group('x', session => {me})")],
    "observe": [foreign("look", "SELECT pgqueue.observe(pgqueue.queue_id('other'), {me})")],
    "open_session": [
        Call("SELECT pgqueue.open_session(resume => {me})", "client", owner="PQ007"),
        foreign("client", "SELECT pgqueue.open_session(parent => {me})"),
    ],
    "pop": [foreign("take", "SELECT pgqueue.pop('secret.own', session => {me})")],
    "progress": [foreign("take", "SELECT pgqueue.progress({taken}, session => {me}, value => '1')")],
    "record_step": [foreign("take", "SELECT pgqueue.record_step({taken}, session => {me}, name => 'x', value => '1')")],
    "release": [
        foreign("take", "SELECT pgqueue.release({taken}, session => {me})"),
        foreign("take", f"{FORGED}; SELECT pgqueue.release({{taken}})"),
    ],
    "release_many": [foreign("take", "SELECT pgqueue.release_many('{{{taken}}}', session => {me})")],
    "register_worker": [foreign("take", "SELECT pgqueue.register_worker(1, '{{}}', session => {me})")],
    "requeue": [foreign("take", "SELECT pgqueue.requeue({taken}, session => {me})")],
    "session_deadline": [foreign("client", "SELECT pgqueue.session_deadline({me})")],
    "set_node": [foreign("share", "SELECT pgqueue.set_node('/victim', '1')")],
    "set_will": [foreign("share", "SELECT pgqueue.set_will('', 'nowhere', '1', session => {me})")],
    "take": [
        foreign("take", "SELECT pgqueue.take('secret.own', session => {me})"),
        foreign("take", "SELECT pgqueue.take('other', session => {me})"),
    ],
    "take_id": [foreign("take", "SELECT pgqueue.take_id({own}, session => {me})")],
    "take_many": [foreign("take", "SELECT pgqueue.take_many('{{secret.own}}', 1, session => {me})")],
    "touch": [foreign("take", "SELECT pgqueue.touch({taken}, session => {me})")],
    "unlock": [Call(f"{FORGED}; SELECT pgqueue.unlock('victim lock')", "share", "", "nothing")],
    "unregister_worker": [foreign("take", "SELECT pgqueue.unregister_worker(1, {me})")],
    "unobserve": [foreign("look", "SELECT pgqueue.unobserve({q}, {me})")],
    "sessions": [Call("SELECT * FROM pgqueue.sessions WHERE id = {me}", "view", "monitor owner", "nothing")],
    "workers": [Call("SELECT * FROM pgqueue.workers", "view", "monitor owner", "nothing")],
    "takes": [Call("SELECT * FROM pgqueue.takes WHERE claim = {claim}", "view", "owner", "nothing")],
}


def functions() -> dict[str, list[Call]]:
    """All calls of each function."""
    return {name: calls + OWNED.get(name, []) for name, calls in FUNCTIONS.items()}


def views() -> dict[str, list[Call]]:
    """All calls of each view. The views sessions and workers have none but those by ownership."""
    names = {*VIEWS, "sessions", "workers"}
    return {name: VIEWS.get(name, []) + OWNED.get(name, []) for name in sorted(names)}
