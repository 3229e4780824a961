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
SELECT id, existed FROM pgqueue.put('mail', '{"to": "ida@example.org"}', unique_for => '1 h');

-- name: put_many
SELECT pgqueue.put_many('mail', '[{"to": "eve@example.org"}, {"to": "dan@example.org"}]');

-- name: data_key
SELECT * FROM pgqueue.put('mail', '{"to": "kim@example.org"}', key => pgqueue.data_key('{"to": "kim@example.org"}'));

-- name: urgent_priority
SELECT pgqueue.put('mail', '{"to": "root@example.org"}', priority => pgqueue.urgent_priority('mail'));

-- name: allow_lanes
SELECT pgqueue.allow_lanes('mail');

-- name: put_flow
SELECT f.id, f.state
  FROM pgqueue.put('flow', '"extract"') AS p, pgqueue.put_flow('flow', '"load"', after => ARRAY [p.id]) AS f;

-- name: put_flow_many
SELECT pgqueue.put_flow_many('flow', '[1, 2]', after => ARRAY [p.id], on_failure => 'run')
  FROM pgqueue.put('flow', '"split"') AS p;

-- name: put_graph
SELECT pgqueue.put_graph('[{"queue": "flow", "data": "split"}, {"queue": "flow", "data": "join", "after": [-1]}]');

-- name: create_batch
SELECT pgqueue.create_batch('newsletter');

-- name: close_batch
SELECT c.total, c.ids
  FROM pgqueue.create_batch() AS b, pgqueue.close_batch(b, '[{"queue": "flow", "data": "all are done"}]') AS c;

-- name: delete_batch
SELECT pgqueue.delete_batch(b) FROM pgqueue.create_batch() AS b;

-- name: allow_flows
SELECT pgqueue.allow_flows('flow');

-- section: Taking and settling
-- A take is held by the session of the connection that calls, unless `session` names another one. A call that settles a
-- task presents the take's `token`, or its session. A refusal is no error: it is a row whose `problem` is not NULL.

-- name: take
SELECT id, token, data FROM pgqueue.take('mail');
SELECT pgqueue.release_all('mail');

-- name: take_many
SELECT id, queue, data FROM pgqueue.take_many('{urgent, mail}', 10);
SELECT pgqueue.release_all('mail');

-- name: take_or_listen
SELECT id, token, data, again FROM pgqueue.take_or_listen('{mail}');
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

-- name: cancelled_takes
SELECT c.* FROM pgqueue.take('work') AS t, pgqueue.cancelled_takes(ARRAY [t.id], ARRAY [t.token]) AS c;

-- name: touch
SELECT u.state, u.problem FROM pgqueue.take('work') AS t, pgqueue.touch(t.id, t.token, more => '30 s') AS u;

-- name: time_left
SELECT left_of.* FROM pgqueue.take('work') AS t, pgqueue.time_left(ARRAY [t.id], ARRAY [t.token]) AS left_of;

-- name: finish
SELECT f.state, f.problem
  FROM pgqueue.take('work') AS t, pgqueue.finish(t.id, t.token, result => '{"sent": 1}', keep => '1 day') AS f;

-- name: finish_many
WITH taken AS (
    SELECT array_agg(id) AS ids, array_agg(token) AS tokens, jsonb_agg(jsonb_build_object('sent', id)) AS results
      FROM pgqueue.take_many('{work}', 2))
SELECT refused.* FROM taken, pgqueue.finish_many(ids, tokens, results => taken.results) AS refused;

-- name: fail
SELECT pgqueue.put('work', '10');
SELECT f.state, f.problem FROM pgqueue.take('work') AS t, pgqueue.fail(t.id, t.token, error => 'no such address') AS f;

-- name: progress
SELECT pgqueue.put('work', '11');
SELECT p.state, p.problem
  FROM pgqueue.take('work') AS t, pgqueue.progress(t.id, t.token, value => '{"percent": 40}') AS p;

-- name: record_step
SELECT pgqueue.put('work', '12');
SELECT s.kept, s.problem
  FROM pgqueue.take('work') AS t, pgqueue.record_step(t.id, t.token, name => 'charge', value => '{"receipt": 7}') AS s;

-- name: get_step
SELECT s.recorded, s.value
  FROM pgqueue.takes AS t, pgqueue.get_step(t.id, session => t.session, name => 'charge') AS s WHERE t.queue = 'work';

-- name: predecessors
SELECT on_id, state, result FROM pgqueue.predecessors(1);

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

-- name: neighbours
SELECT shares, task, state, holder FROM pgqueue.neighbours(1);

-- name: first_task
SELECT pgqueue.first_task('work', 'buried');

-- name: find_tasks
SELECT id, error, created_at FROM pgqueue.find_tasks('work', 'buried', 20);

-- name: search_tasks
SELECT ids, next FROM pgqueue.search_tasks('work', 'buried', 20, contains => '{"args": {"to": "ada@example.org"}}');

-- name: outcome
SELECT state, attempts, error, progress, result FROM pgqueue.outcome(1);

-- name: kick
SELECT pgqueue.kick('work', 100);

-- name: act_on_tasks
SELECT acted, next FROM pgqueue.act_on_tasks('work', 'kick', 'buried', job => 'shop.send', error => 'SMTPError');

-- name: kick_task
SELECT pgqueue.bury(id) FROM pgqueue.first_task('work', 'ready') AS id;
SELECT k.state, k.problem FROM pgqueue.first_task('work', 'buried') AS id, pgqueue.kick_task(id) AS k;

-- name: put_again
SELECT pgqueue.put_again(p.id) FROM pgqueue.put('work', '{"to": "ada@example.org"}') AS p;

-- name: delete
SELECT pgqueue.delete(id) FROM pgqueue.first_task('work', 'ready') AS id;

-- name: delete_strict
SELECT d.state, d.problem FROM pgqueue.put('work', '12') AS p, pgqueue.delete_strict(p.id) AS d;

-- name: cancel
SELECT c.state, c.problem FROM pgqueue.put('work', '13') AS p, pgqueue.cancel(p.id, 'the order was withdrawn') AS c;

-- name: cancel_many
SELECT c.id, c.state, c.problem
  FROM pgqueue.put_many('work', '[14, 15]') AS ids, pgqueue.cancel_many(ids) AS c;

-- name: cancel_key
SELECT id FROM pgqueue.put('work', '16', key => 'order-7');
SELECT id, state, problem FROM pgqueue.cancel_key('work', 'order-7');

-- name: cancellations
SELECT id, queue, asked_at, role, holder FROM pgqueue.cancellations;

-- name: attempts
SELECT number, began_at, ended_at, worker, state, error, traceback FROM pgqueue.attempts WHERE id = 1 ORDER BY number;
-- name: dependencies
SELECT id, on_id, state, on_failure FROM pgqueue.dependencies WHERE queue = 'work';

-- name: batches
SELECT id, name, state, total, done, failed, open FROM pgqueue.batches ORDER BY id DESC LIMIT 10;

-- name: batch_stats
SELECT state, batches, open, failed FROM pgqueue.batch_stats;

-- name: batch_failures
SELECT id, queue, error FROM pgqueue.batch_failures WHERE batch = 1;

-- name: steps
SELECT step, value FROM pgqueue.steps WHERE id = 1;

-- name: results
SELECT * FROM pgqueue.results ORDER BY finished_at DESC LIMIT 10;

-- section: Queues

-- name: create_queue
SELECT pgqueue.create_queue('replies to web-7', expires => '10 min');
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
SELECT pgqueue.truncate_queue('reports', states => '{ready,delayed}');
SELECT pgqueue.truncate_queue('reports');

-- name: move_out
-- On the server that has the tasks, in a transaction that is committed after that of move_in.
SELECT tasks, last FROM pgqueue.move_out('reports', 100);

-- name: move_in
-- On the server that gets them: the tasks of move_out.
SELECT pgqueue.move_in('reports', ARRAY ['{"data": {"month": 5}, "state": "R", "priority": 0, "attempts": 0,
    "created_at": "2026-05-01T06:00:00+00:00"}'::jsonb]);

-- name: moving_lanes
SELECT * FROM pgqueue.moving_lanes('reports');

-- name: staying
SELECT reason, n FROM pgqueue.staying('reports');

-- name: queue_id
SELECT pgqueue.queue_id('mail');

-- name: delete_queue
SELECT pgqueue.create_queue('scratch');
SELECT pgqueue.delete_queue('scratch', if_empty => true);

-- section: Limits
-- At most so many tasks of a job, or of a queue, are taken at once, or begin in a time:
-- [Limits of tasks](../guides/limits.md).

-- name: set_limit
SELECT pgqueue.set_limit('mail', concurrency => 20);
SELECT pgqueue.set_limit('mail', job => 'shop.send', rate => 100, per => '1 min', argument => 'customer');

-- name: declare_limit
SELECT pgqueue.declare_limit('mail', 'shop.invoice', concurrency => 2);

-- name: limits
SELECT queue, job, concurrency, rate, per, running, waiting, next_at FROM pgqueue.limits;

-- name: drop_limit
SELECT pgqueue.drop_limit('mail', 'shop.send'), pgqueue.drop_limit('mail');

-- section: Messages and claims
-- Claims by Zaqar's rules: messages are held for a time and not by a process. Listings need a queue with the option `listed`.

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

-- section: Schedules
-- [Schedules](../guides/schedules.md) has the rules. A worker, or `pgqueue schedule clock`, fires them.

-- name: set_schedule
SELECT pgqueue.set_schedule('digest', 'mail', '{"to": "all"}', cron => '0 9 * * mon-fri', tz => 'Europe/Berlin');
SELECT pgqueue.set_schedule('tick', 'work', '1', every => '10 s', missed => 'none', options => '{"priority": -1}');

-- name: declare_schedules
SELECT name, what FROM pgqueue.declare_schedules('shop', '[{"name": "clean", "queue": "work", "cron": "@daily"}]');

-- name: pause_schedule
SELECT pgqueue.pause_schedule('digest');

-- name: resume_schedule
SELECT pgqueue.resume_schedule('digest');

-- name: run_schedule
SELECT pgqueue.run_schedule('digest');

-- name: due_schedules
SELECT name, revision, cron, every, tz, counts_from, next_at, moment, seconds FROM pgqueue.due_schedules();

-- name: fire_schedule
SELECT f.outcome, f.ids, f.problem
  FROM pgqueue.due_schedules() d,
       pgqueue.fire_schedule(d.name, d.revision, d.next_at, ARRAY[d.moment], d.moment + interval '1 day') f
 WHERE d.name = 'clean';

-- name: delete_schedule
SELECT pgqueue.delete_schedule('tick');

-- name: schedules
SELECT name, queue, cron, every, tz, paused, next_at, last_at, last_task, last_state, error FROM pgqueue.schedules;

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

-- name: count_version
SELECT pgqueue.count_version('mail');

-- name: rates
SELECT queue, puts, done, growth, drained_in FROM pgqueue.rates;

-- name: queue_rates
SELECT queue, puts, done, growth, drained_in FROM pgqueue.queue_rates('{mail}');

-- name: queue_history
SELECT at, puts, done, ready, oldest_ready_age FROM pgqueue.queue_history WHERE queue = 'mail' ORDER BY at;

-- name: history
SELECT at, puts, done, most_ready FROM pgqueue.history('{mail}', since => '1 day', every => '1 hour');

-- name: takes
SELECT id, queue, holder, age, time_left FROM pgqueue.takes;

-- name: listeners
SELECT label, host, pid, state FROM pgqueue.listeners;

-- name: workers
SELECT name, state, queues, jobs, concurrency, age FROM pgqueue.workers;

-- name: job_stats
SELECT queue, job, done, failed, retried, taken, wait_p95, run_p50, run_p95 FROM pgqueue.job_stats;

-- name: job_history
SELECT at, done, failed, run_p95 FROM pgqueue.job_history WHERE job = 'shop.send' AND period = 'hour' ORDER BY at;

-- name: job_runs
SELECT job, done, waited / nullif(done, 0) AS mean_wait, runs FROM pgqueue.job_runs(since => '5 min');
SELECT job, done, failed FROM pgqueue.job_runs(since => NULL);

-- name: run_bounds
SELECT pgqueue.run_bounds();

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
-- The functions are for the owner of the schema. PUBLIC has SELECT on schema_version and nothing else, and no USAGE on
-- the schema. [Security](../security.md) has the verbs.

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

-- name: audit
SELECT at, role, actor, verb, queue, object, count, detail FROM pgqueue.audit ORDER BY id DESC LIMIT 20;

-- name: set_quota
SELECT pgqueue.set_quota('queues', 20000);

-- name: quotas
SELECT what, number FROM pgqueue.quotas;

-- section: Several servers
-- Servers that each have a pgqueue of their own are numbered, and then an id names its server:
-- [Growing](../guides/growing.md).

-- name: set_server
SELECT pgqueue.set_server(3);

-- name: server_number
SELECT pgqueue.server_number();

-- name: add_server
SELECT pgqueue.add_server(3, 'postgresql://app@db3.example.org/app');
SELECT pgqueue.add_server(4, 'service=db4');

-- name: servers
SELECT number, dsn, listen_dsn, state, is_home, version FROM pgqueue.servers();

-- name: set_server_state
SELECT pgqueue.set_server_state(4, 'draining');

-- name: remove_server
SELECT pgqueue.remove_server(4);

-- name: copy_servers
SELECT pgqueue.copy_servers(cluster, version, jsonb_agg(to_jsonb(s))) FROM pgqueue.servers() s GROUP BY cluster, version;

-- name: own_id
SELECT * FROM pgqueue.tasks WHERE id = (SELECT pgqueue.own_id(id) FROM pgqueue.put('mail', '{"to": "ada@example.org"}'));

-- section: Periodic work
-- The listener of each client calls these by itself. Without a client of the library that takes or listens, only
-- take_or_listen does; where that is not used either, the tasks of connections that ended stay taken: schedule them, as
-- [Without a client of the library](../deployment/index.md#without-a-client-of-the-library) shows.

-- name: tick
SELECT pgqueue.tick();

-- name: promote_all
SELECT pgqueue.promote_all();

-- name: sweep
SELECT freed, again, alive, clients FROM pgqueue.sweep();

-- name: clean_up
SELECT pgqueue.clean_up();

-- section: For client libraries
-- How a listener waits for a queue, a waiter for a result, and an observer for changes. The files of `pgqueue/sql` explain the protocols.

-- name: arm
SELECT queue_id, drained, hears FROM pgqueue.arm(ARRAY[pgqueue.queue_id('mail')]);

-- name: arm_again
SELECT queue_id, drained FROM pgqueue.arm_again(ARRAY[pgqueue.queue_id('mail')]);

-- name: disarm
SELECT pgqueue.disarm(ARRAY[pgqueue.queue_id('mail')]);

-- name: stop_hearing
SELECT pgqueue.stop_hearing(ARRAY[pgqueue.queue_id('mail')]);

-- name: await_ends
SELECT pgqueue.await_ends(ARRAY[1]);

-- name: await_outcome
SELECT state, result, drained FROM pgqueue.await_outcome(1);

-- name: leave_ends
SELECT pgqueue.leave_ends(ARRAY[1]);

-- name: enter_line
SELECT queue_id, since, hears FROM pgqueue.enter_line(ARRAY[pgqueue.queue_id('mail')], waited => '{0.5}');

-- name: leave_line
SELECT pgqueue.leave_line(ARRAY[pgqueue.queue_id('mail')], places => '{1700000000.25}');

-- name: pass_on
SELECT pgqueue.pass_on(ARRAY[pgqueue.queue_id('mail')]);

-- name: count_runs
SELECT pgqueue.count_runs(writer => 7, batch => 1, runs => jsonb_build_array(jsonb_build_object(
    'queue', 'mail', 'job', 'shop.send', 'done', 22, 'waited', 1.5, 'ran', 3.25,
    'waits', array_fill(1, '{22}'), 'runs', array_fill(1, '{22}'))));

-- name: register_worker
SELECT pgqueue.register_worker(number => 1, queues => '{mail}', jobs => '{shop.send}', concurrency => 8);

-- name: unregister_worker
SELECT pgqueue.unregister_worker(number => 1);

-- name: next_due
SELECT queue, seconds FROM pgqueue.next_due('{mail}');

-- name: tick_ages
SELECT tick, cleaning, alive, clients FROM pgqueue.tick_ages();

-- name: observe
SELECT pgqueue.observe(pgqueue.queue_id('mail'));

-- name: unobserve
SELECT pgqueue.unobserve(pgqueue.queue_id('mail'));
