-- One example for each public function and view of the SQL reference, in the order of its page.
--
-- tools/sqlreference.py reads this file: `-- section:` begins a part of the page, followed by its introduction;
-- `-- name:` names the function or view of the example below it. tests/docs/test_sql_reference.py runs all of it in a fresh
-- database.

-- section: Putting
-- A put is one statement, and part of the transaction that it is called in.

-- name: put
SELECT * FROM pgqueue.put('mail', '{"to": "ada@example.org"}', delay => '5 min', priority => -1);
SELECT id, existed FROM pgqueue.put('mail', '{"to": "bob@example.org"}', key => 'welcome bob', lane => 'bob');

-- name: put_many
SELECT pgqueue.put_many('mail', '[{"to": "eve@example.org"}, {"to": "dan@example.org"}]');

-- name: urgent_priority
SELECT pgqueue.put('mail', '{"to": "root@example.org"}', priority => pgqueue.urgent_priority('mail'));

-- name: allow_lanes
SELECT pgqueue.allow_lanes('mail');

-- section: Taking and settling
-- A take is held by the session of the connection that calls, unless `session` names another one. A call that settles a
-- task presents the take's `token`, or its session. A refusal is no error: it is a row whose `problem` is not NULL.

-- name: take
SELECT id, token, data FROM pgqueue.take('mail');
SELECT pgqueue.release_all('mail');

-- name: take_many
SELECT id, queue, data FROM pgqueue.take_many('{urgent, mail}', 10);
SELECT pgqueue.release_all('mail');

-- name: take_id
SELECT t.token, t.data FROM pgqueue.first_task('mail', 'ready') AS id, pgqueue.take_id(id) AS t;
SELECT pgqueue.release_all('mail');

-- name: pop
SELECT id, data FROM pgqueue.pop('mail', 1);

-- name: ack
SELECT a.state, a.problem FROM pgqueue.take('mail') AS t, pgqueue.ack(t.id, t.token) AS a;

-- name: ack_many
SELECT pgqueue.put_many('work', '[1, 2, 3, 4, 5, 6, 7, 8, 9]');
WITH taken AS (SELECT array_agg(id) AS ids, array_agg(token) AS tokens FROM pgqueue.take_many('{work}', 2))
SELECT refused.* FROM taken, pgqueue.ack_many(ids, tokens) AS refused;

-- name: release
SELECT r.state, r.problem
  FROM pgqueue.take('work') AS t, pgqueue.release(t.id, t.token, delay => '1 min', error => 'no answer') AS r;

-- name: release_many
WITH taken AS (SELECT array_agg(id) AS ids, array_agg(token) AS tokens FROM pgqueue.take_many('{work}', 2))
SELECT refused.* FROM taken, pgqueue.release_many(ids, tokens) AS refused;

-- name: release_all
SELECT pgqueue.release_all('work');

-- name: requeue
SELECT r.new_id, r.state, r.problem FROM pgqueue.take('work') AS t, pgqueue.requeue(t.id, t.token) AS r;

-- name: bury
SELECT b.state, b.problem FROM pgqueue.take('work') AS t, pgqueue.bury(t.id, t.token, error => 'no such address') AS b;

-- name: touch
SELECT u.state, u.problem FROM pgqueue.take('work') AS t, pgqueue.touch(t.id, t.token, more => '30 s') AS u;

-- name: time_left
SELECT left_of.* FROM pgqueue.take('work') AS t, pgqueue.time_left(ARRAY [t.id], ARRAY [t.token]) AS left_of;

-- name: finish
SELECT f.state, f.problem
  FROM pgqueue.take('work') AS t, pgqueue.finish(t.id, t.token, result => '{"sent": 1}', keep => '1 day') AS f;

-- name: finish_many
WITH taken AS (SELECT array_agg(id) AS ids, array_agg(token) AS tokens FROM pgqueue.take_many('{work}', 2))
SELECT refused.* FROM taken, pgqueue.finish_many(ids, tokens, results => '[{"sent": 1}, {"sent": 2}]') AS refused;

-- name: fail
SELECT pgqueue.put('work', '10');
SELECT f.state, f.problem FROM pgqueue.take('work') AS t, pgqueue.fail(t.id, t.token, error => 'no such address') AS f;

-- name: progress
SELECT pgqueue.put('work', '11');
SELECT p.state, p.problem
  FROM pgqueue.take('work') AS t, pgqueue.progress(t.id, t.token, value => '{"percent": 40}') AS p;

-- name: undo_take
SELECT pgqueue.undo_take(4711);

-- name: forget_undo
SELECT pgqueue.forget_undo(4711);

-- name: session_deadline
SELECT pgqueue.session_deadline(pgqueue.own_session());

-- section: One task
-- These need no take, and work on a task in any state that their comment names.

-- name: tasks
SELECT id, state, attempts, error, holder, data FROM pgqueue.tasks WHERE queue = 'work';

-- name: newest_tasks
SELECT id FROM pgqueue.newest_tasks(20) newest(id);

-- name: find_key
SELECT pgqueue.find_key('mail', 'a key');

-- name: first_task
SELECT pgqueue.first_task('work', 'buried');

-- name: find_tasks
SELECT id, error, created_at FROM pgqueue.find_tasks('work', 'buried', 20);

-- name: outcome
SELECT state, attempts, error, progress, result FROM pgqueue.outcome(1);

-- name: kick
SELECT pgqueue.kick('work', 100);

-- name: kick_task
SELECT pgqueue.bury(id) FROM pgqueue.first_task('work', 'ready') AS id;
SELECT k.state, k.problem FROM pgqueue.first_task('work', 'buried') AS id, pgqueue.kick_task(id) AS k;

-- name: delete
SELECT pgqueue.delete(id) FROM pgqueue.first_task('work', 'ready') AS id;

-- name: delete_strict
SELECT d.state, d.problem FROM pgqueue.put('work', '12') AS p, pgqueue.delete_strict(p.id) AS d;

-- name: results
SELECT * FROM pgqueue.results ORDER BY finished_at DESC LIMIT 10;

-- section: Queues

-- name: create_queue
SELECT pgqueue.create_queue('reports', ttr => '5 min', max_takes => 5, keep_done => '1 day', listed => true);

-- name: queues
SELECT name, ttr, max_takes, keep_done FROM pgqueue.queues;

-- name: alter_queue
SELECT pgqueue.alter_queue('reports', '{"ttl": "1 h", "max_takes": null}');

-- name: rename_queue
SELECT pgqueue.rename_queue('reports', 'monthly reports');
SELECT pgqueue.rename_queue('monthly reports', 'reports');

-- name: pause_queue
SELECT pgqueue.pause_queue('reports', '10 min');
SELECT pgqueue.pause_queue('reports', '0');

-- name: drain_queue
SELECT pgqueue.drain_queue('reports');
SELECT pgqueue.drain_queue('reports', false);

-- name: drain_queues
SELECT pgqueue.drain_queues();
SELECT pgqueue.drain_queues(false);

-- name: truncate_queue
SELECT pgqueue.truncate_queue('reports');

-- name: queue_id
SELECT pgqueue.queue_id('mail');

-- name: delete_queue
SELECT pgqueue.create_queue('scratch');
SELECT pgqueue.delete_queue('scratch', if_empty => true);

-- section: Messages and claims
-- Claims by Zaqar's rules: messages are held for a time and not by a process. Listings need a queue made with `listed`.

-- name: claim_messages
SELECT pgqueue.put_many('reports', '["january", "february", "march"]');
SELECT claim, id, data FROM pgqueue.claim_messages('reports', 2, ttl => '5 min', grace => '1 min');

-- name: get_claim
SELECT held.id, held.deadline
  FROM pgqueue.claim_messages('reports', 1) AS made, pgqueue.get_claim('reports', made.claim) AS held;

-- name: renew_claim
SELECT pgqueue.put('reports', '"april"');
SELECT pgqueue.renew_claim('reports', claim, ttl => '10 min') FROM pgqueue.claim_messages('reports', 1);

-- name: release_claim
SELECT pgqueue.put('reports', '"may"');
SELECT pgqueue.release_claim('reports', claim) FROM pgqueue.claim_messages('reports', 1);

-- name: list_messages
SELECT marker, id, state, data FROM pgqueue.list_messages('reports', n => 2, include_claimed => true);

-- name: delete_message
SELECT d.problem FROM pgqueue.first_task('reports', 'ready') AS id, pgqueue.delete_message('reports', id) AS d;

-- name: delete_messages
SELECT id, data FROM pgqueue.delete_messages('reports', '{1, 2, 3}');

-- name: message_stats
SELECT free, claimed, total, oldest FROM pgqueue.message_stats('reports');

-- section: Sessions
-- A client has one session, on a connection that stays open. In psql the first take opens one for the connection.

-- name: open_session
SELECT pgqueue.open_session(label => 'nightly job', grace => '2 s');

-- name: own_session
SELECT pgqueue.own_session();

-- name: identify
SELECT pgqueue.identify();

-- name: sessions
SELECT label, state, taken, missing_since FROM pgqueue.sessions;

-- name: close_session
SELECT pgqueue.close_session();

-- section: Channels
-- `LISTEN` hears what is posted to a channel of a plain name. A payload over NOTIFY's limit is stored, and fetched by
-- its id.

-- name: post
LISTEN news;
SELECT pgqueue.post('news', 'hello');

-- name: stored_payload
SELECT pgqueue.stored_payload(1);

-- section: Status by key

-- name: set_status
SELECT pgqueue.set_status('report', '{"percent": 50}', ttl => '1 h');

-- name: get_status
SELECT pgqueue.get_status('report');

-- name: statuses
SELECT * FROM pgqueue.statuses;

-- name: delete_status
SELECT pgqueue.delete_status('report');

-- section: Exchanges and routing

-- name: declare_exchange
SELECT pgqueue.declare_exchange('orders', 'topic');

-- name: bind
SELECT pgqueue.create_queue('audit');
SELECT pgqueue.bind('audit', 'orders', 'order.#');

-- name: publish
SELECT pgqueue.publish('orders', 'order.paid', '{"order": 7}');

-- name: exchanges
SELECT * FROM pgqueue.exchanges;

-- name: bindings
SELECT * FROM pgqueue.bindings;

-- name: set_will
SELECT pgqueue.open_session(label => 'gate 7');
SELECT pgqueue.set_will('orders', 'gate.down', '{"gate": 7}');

-- name: clear_will
SELECT pgqueue.clear_will();

-- name: dead_letters
SELECT * FROM pgqueue.dead_letters;

-- name: unbind
SELECT pgqueue.unbind('audit', 'orders', 'order.#');

-- name: delete_exchange
SELECT pgqueue.delete_exchange('orders');

-- section: Locks
-- A lock belongs to the connection, as PostgreSQL's advisory locks do: a rollback does not release it.

-- name: try_lock
SELECT pgqueue.try_lock('nightly');

-- name: locks
SELECT name, mode, holder, fence, waiters FROM pgqueue.locks;

-- name: unlock
SELECT pgqueue.unlock('nightly');

-- name: ask_lock
SELECT fence, ahead, channel FROM pgqueue.ask_lock('nightly', shared => false, token => 42, wait => true);

-- name: drop_lock
SELECT pgqueue.drop_lock(42);

-- section: Nodes and groups

-- name: watch_node
SELECT pgqueue.watch_node('/config');

-- name: create_node
SELECT path, version FROM pgqueue.create_node('/config', '{"rate": 10}');

-- name: set_node
SELECT version, problem FROM pgqueue.set_node('/config', '{"rate": 20}', version => 0);

-- name: nodes
SELECT path, data, version, holder FROM pgqueue.nodes;

-- name: children
SELECT pgqueue.children('/');

-- name: join_group
SELECT path FROM pgqueue.join_group('workers', '{"port": 8001}');

-- name: delete_node
SELECT problem FROM pgqueue.delete_node('/config');

-- section: Watching
-- Cheap enough to be asked every second; [Monitoring](../guides/monitoring.md) describes the columns and gives recipes.

-- name: stats
SELECT queue, ready, delayed, taken, buried, done, oldest_ready_age, calls ->> 'put' AS puts FROM pgqueue.stats;

-- name: queue_stats
SELECT ready, oldest_ready_age FROM pgqueue.queue_stats('mail');

-- name: rates
SELECT queue, puts, done, growth, drained_in FROM pgqueue.rates;

-- name: takes
SELECT id, queue, holder, age, time_left FROM pgqueue.takes;

-- name: listeners
SELECT label, host, pid, state FROM pgqueue.listeners;

-- name: health
SELECT name, status, value, unit, detail FROM pgqueue.health;

-- name: why
SELECT reason, tasks, detail FROM pgqueue.why('mail');
SELECT reason, detail FROM pgqueue.why(1);

-- name: tables
SELECT name, rows, dead_rows, total_bytes, last_vacuum FROM pgqueue.tables;

-- name: snapshots
SELECT kind, name, pid, age, query FROM pgqueue.snapshots WHERE holds_back;

-- name: last_tick
SELECT pgqueue.last_tick();

-- section: Rights
-- The functions are for the owner of the schema. Nothing is granted to PUBLIC. [Security](../security.md) has the verbs.

-- name: grant_to
SELECT pgqueue.grant_to(current_user::regrole);
SELECT pgqueue.grant_to(current_user::regrole, '{put,take}', 'shop.*');

-- name: revoke_from
SELECT pgqueue.revoke_from(current_user::regrole, '{put,take}', 'shop.*');

-- name: grant
SELECT pgqueue.grant('mail', current_user::regrole, '{put}');

-- name: restrict_queue
SELECT pgqueue.restrict_queue('mail');
SELECT pgqueue.restrict_queue('mail', false);

-- name: revoke
SELECT pgqueue.revoke('mail', current_user::regrole, '{put}');

-- name: grant_monitor
SELECT pgqueue.grant_monitor(current_user::regrole);

-- name: revoke_monitor
SELECT pgqueue.revoke_monitor(current_user::regrole);

-- name: privileges
SELECT role, verb, queue, pattern FROM pgqueue.privileges;

-- name: set_limit
SELECT pgqueue.set_limit('queues', 20000);

-- name: limits
SELECT what, number FROM pgqueue.limits;

-- section: Periodic work
-- The listener of each client calls these by itself. Without a client of the library that takes or listens, nothing else
-- does, and the tasks of connections that ended stay taken: schedule them, as
-- [Without a client of the library](../deployment/index.md#without-a-client-of-the-library) shows.

-- name: promote_all
SELECT pgqueue.promote_all();

-- name: sweep
SELECT freed, again, alive FROM pgqueue.sweep();

-- name: clean_up
SELECT pgqueue.clean_up();

-- section: For client libraries
-- How a listener waits for a queue and an observer for its changes. The files of `pgqueue/sql` explain the protocols.

-- name: arm
SELECT queue_id, drained FROM pgqueue.arm(ARRAY[pgqueue.queue_id('mail')]);

-- name: arm_again
SELECT queue_id, drained FROM pgqueue.arm_again(ARRAY[pgqueue.queue_id('mail')]);

-- name: disarm
SELECT pgqueue.disarm(ARRAY[pgqueue.queue_id('mail')]);

-- name: next_due
SELECT queue, seconds FROM pgqueue.next_due('{mail}');

-- name: observe
SELECT pgqueue.observe(pgqueue.queue_id('mail'));

-- name: unobserve
SELECT pgqueue.unobserve(pgqueue.queue_id('mail'));
