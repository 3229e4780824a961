"""The pages that show views unchanged: limits, batches, coordination, routing and the server."""

from __future__ import annotations

from typing import LiteralString

from .visit import Column, Listing, listing_page

#: Of the queues that get dead letters, the newest ready tasks: the view dead_letters reads every task.
DEAD_LETTERS_OF: LiteralString = (
    "FROM (SELECT DISTINCT q.name FROM pgqueue.queues d LEFT JOIN pgqueue.bindings b"
    " ON b.exchange OPERATOR(pg_catalog.=) d.dead_letter"
    " JOIN pgqueue.queues q ON q.name OPERATOR(pg_catalog.=) coalesce(b.queue, d.dead_letter_key)"
    " WHERE d.dead_letter IS NOT NULL ORDER BY q.name LIMIT 20) q"
    " CROSS JOIN LATERAL pgqueue.find_tasks(queue => q.name, state => 'ready', n => 200, backwards => true) t"
    " WHERE t.deaths IS NOT NULL ORDER BY died_at DESC"
)
LIMITS = Listing(
    "limits",
    "Limits",
    (
        Column("Queue", "queue", "queue"),
        Column("Job", "job"),
        Column("For each value of", "argument"),
        Column("At once", "concurrency", "number"),
        Column("Rate", "rate", "number"),
        Column("in", "seconds", "duration"),
        Column("Running", "running", "number"),
        Column("Waiting", "waiting", "number"),
        Column("Next", "next_at", "until"),
    ),
    (
        "queue",
        "job",
        "argument",
        "concurrency",
        "rate",
        "extract(epoch FROM per)::float AS seconds",
        "running",
        "waiting",
        "next_at",
    ),
    "FROM pgqueue.limits ORDER BY waiting DESC, queue, job",
    "No limit is set.",
    cards=True,
)
BATCHES = Listing(
    "batches",
    "Batches",
    (
        Column("Batch", "id"),
        Column("Name", "name"),
        Column("State", "state", "state"),
        Column("Progress", "done", "progress"),
        Column("Failed", "failed", "number"),
        Column("Open", "open", "number"),
        Column("Tasks", "total", "number"),
        Column("Made", "created_at", "ago"),
        Column("Role", "role"),
    ),
    ("id", "name", "state", "done", "failed", "open", "total", "created_at", "role"),
    "FROM pgqueue.batches ORDER BY ended_at IS NOT NULL, id DESC",
    "No batch is there; a batch is kept until a day after its end.",
    cards=True,
)
BATCH_FAILURES = Listing(
    "batch-failures",
    "Failed tasks of batches",
    (
        Column("Batch", "batch"),
        Column("Task", "id", "task"),
        Column("Queue", "queue", "queue"),
        Column("State", "state", "state"),
        Column("Error", "error", "error"),
    ),
    ("batch", "id", "queue", "state", "error"),
    "FROM pgqueue.batch_failures ORDER BY batch DESC, id",
    "No task of a batch has failed.",
    cards=True,
)
LOCKS = Listing(
    "locks",
    "Locks and elections",
    (
        Column("Lock", "name"),
        Column("Mode", "mode"),
        Column("Holder", "holder"),
        Column("For", "age", "duration"),
        Column("Waiters", "waiters", "number"),
        Column("Fence", "fence"),
    ),
    ("name", "mode", "holder", "extract(epoch FROM age)::float AS age", "waiters", "fence"),
    "FROM pgqueue.locks ORDER BY waiters DESC, name",
    "No lock is held; a leader that an election chose holds the lock of its name.",
    cards=True,
)
NODES = Listing(
    "nodes",
    "Nodes",
    (
        Column("Path", "path"),
        Column("Version", "version"),
        Column("Ends with", "holder"),
        Column("Data", "data", "json"),
        Column("Changed", "updated_at", "ago"),
    ),
    (
        "path",
        "version",
        "CASE WHEN ephemeral THEN holder END AS holder",
        "pg_catalog.left(data::pg_catalog.text, 300) AS data",
        "updated_at",
    ),
    "FROM pgqueue.nodes ORDER BY path",
    "There is no node.",
    cards=True,
)
STATUSES = Listing(
    "statuses",
    "Statuses",
    (
        Column("Key", "key"),
        Column("Value", "value", "json"),
        Column("Set", "updated_at", "ago"),
        Column("Ends", "expires_at", "until"),
    ),
    ("key", "pg_catalog.left(value::pg_catalog.text, 300) AS value", "updated_at", "expires_at"),
    "FROM pgqueue.statuses ORDER BY updated_at DESC, key",
    "No key has a status, or none that the role of this dashboard may see.",
    cards=True,
)
LISTENERS = Listing(
    "listeners",
    "Connections that listen",
    (
        Column("Client", "label"),
        Column("Role", "role"),
        Column("State", "state"),
        Column("Since", "age", "duration"),
        Column("Waits for", "wait_event"),
        Column("Backend", "backend_pid"),
    ),
    ("label", "role", "state", "extract(epoch FROM age)::float AS age", "wait_event", "backend_pid"),
    "FROM pgqueue.listeners ORDER BY label",
    "No client listens.",
    cards=True,
)
EXCHANGES = Listing(
    "exchanges",
    "Exchanges",
    (
        Column("Exchange", "name"),
        Column("Type", "type"),
        Column("Bindings", "bindings", "number"),
        Column("Retained", "retained", "number"),
        Column("Unmatched", "unmatched", "number"),
        Column("Last unmatched", "unmatched_at", "ago"),
        Column("Made", "created_at", "ago"),
    ),
    ("name", "type", "bindings", "retained", "unmatched", "unmatched_at", "created_at"),
    "FROM pgqueue.exchanges ORDER BY name",
    "There is no exchange.",
)
BINDINGS = Listing(
    "bindings",
    "Bindings",
    (Column("Exchange", "exchange"), Column("Key", "key"), Column("Queue", "queue", "queue")),
    ("exchange", "key", "queue"),
    "FROM pgqueue.bindings ORDER BY exchange, key, queue",
    "No queue is bound to an exchange.",
)
DEAD_LETTERS = Listing(
    "dead-letters",
    "Dead letters",
    (
        Column("Task", "id", "task"),
        Column("In", "queue", "queue"),
        Column("Died in", "died_in"),
        Column("Because", "reason"),
        Column("Times", "count", "number"),
        Column("When", "died_at", "ago"),
        Column("Error", "error", "error"),
    ),
    (
        "t.id",
        "t.queue",
        "t.deaths OPERATOR(pg_catalog.->) 0 OPERATOR(pg_catalog.->>) 'queue' AS died_in",
        "t.deaths OPERATOR(pg_catalog.->) 0 OPERATOR(pg_catalog.->>) 'reason' AS reason",
        "(t.deaths OPERATOR(pg_catalog.->) 0 OPERATOR(pg_catalog.->>) 'count')::int AS count",
        "(t.deaths OPERATOR(pg_catalog.->) 0 OPERATOR(pg_catalog.->>) 'time')::timestamptz AS died_at",
        "t.error",
    ),
    DEAD_LETTERS_OF,
    "No dead letter is ready in the queues that were looked at, 20 at most.",
    cards=True,
)
CONNECTIONS = Listing(
    "connections",
    "Connections to this database",
    (
        Column("Application", "application"),
        Column("Role", "role"),
        Column("Connections", "n", "number"),
        Column("Active", "active", "number"),
        Column("In a transaction", "idle", "number"),
    ),
    (
        "coalesce(application_name, '') AS application",
        "usename::pg_catalog.text AS role",
        "pg_catalog.count(*) AS n",
        "pg_catalog.count(*) FILTER (WHERE state OPERATOR(pg_catalog.=) 'active') AS active",
        "pg_catalog.count(*) FILTER (WHERE pg_catalog.starts_with(state, 'idle in')) AS idle",
    ),
    "FROM pg_catalog.pg_stat_activity WHERE datname OPERATOR(pg_catalog.=) pg_catalog.current_database()"
    " GROUP BY 1, 2 ORDER BY 3 DESC, 1, 2",
    "There is no connection.",
)
SNAPSHOTS = Listing(
    "snapshots",
    "Snapshots that keep dead rows",
    (
        Column("Kind", "kind"),
        Column("Name", "name"),
        Column("Backend", "pid"),
        Column("Role", "role"),
        Column("State", "state"),
        Column("For", "age", "duration"),
        Column("Transactions", "xid_age", "number"),
        Column("Query", "query", "text"),
    ),
    ("kind", "name", "pid", "role", "state", "extract(epoch FROM age)::float AS age", "xid_age", "query"),
    "FROM pgqueue.snapshots WHERE holds_back",
    "No snapshot keeps dead rows from being removed.",
    cards=True,
)
TABLES = Listing(
    "tables",
    "Tables",
    (
        Column("Table", "name"),
        Column("Rows", "rows", "number"),
        Column("Dead rows", "dead_rows", "number"),
        Column("Vacuum at", "vacuum_at", "number"),
        Column("Size", "bytes", "size"),
        Column("Indexes", "index_bytes", "size"),
        Column("Last vacuum", "last_vacuum", "ago"),
        Column("Autovacuum", "autovacuum"),
    ),
    ("name", "rows", "dead_rows", "vacuum_at", "total_bytes AS bytes", "index_bytes", "last_vacuum", "autovacuum"),
    "FROM pgqueue.tables ORDER BY total_bytes DESC, name",
    "There is no table.",
)
SERVER = Listing(
    "server",
    "Server",
    (
        Column("PostgreSQL", "version"),
        Column("Database", "database"),
        Column("Size", "bytes", "size"),
        Column("Connections", "used", "number"),
        Column("of", "most", "number"),
        Column("Notification queue", "notifications", "percent"),
        Column("Running for", "uptime", "duration"),
        Column("Role of the dashboard", "role"),
    ),
    (
        "pg_catalog.current_setting('server_version') AS version",
        "pg_catalog.current_database()::pg_catalog.text AS database",
        "pg_catalog.pg_database_size(pg_catalog.current_database()) AS bytes",
        "(SELECT pg_catalog.sum(d.numbackends)::int FROM pg_catalog.pg_stat_database d) AS used",
        "pg_catalog.current_setting('max_connections')::int AS most",
        "pg_catalog.pg_notification_queue_usage() AS notifications",
        "extract(epoch FROM pg_catalog.clock_timestamp() OPERATOR(pg_catalog.-)"
        " pg_catalog.pg_postmaster_start_time())::float AS uptime",
        "CURRENT_USER::pg_catalog.text AS role",
    ),
    "FROM (SELECT) one",
    "",
    cards=True,
)
AUDIT = Listing(
    "audit",
    "The newest calls",
    (
        Column("When", "at", "ago"),
        Column("Actor", "actor"),
        Column("Role", "role"),
        Column("Verb", "verb"),
        Column("Queue", "queue", "queue"),
        Column("Object", "object"),
        Column("Tasks", "count", "number"),
        Column("Detail", "detail"),
    ),
    ("at", "actor", "role", "verb", "queue", "object", "count", "detail"),
    "FROM pgqueue.audit ORDER BY id DESC",
    "No operator has changed anything yet, or not by this role.",
    cards=True,
)

PAGES = (
    listing_page(
        "limits", "Limits", "How many tasks of a job or a queue run at once, and how many begin in a time.", LIMITS
    ),
    listing_page("batches", "Batches", "Tasks that others wait for as for one.", BATCHES, BATCH_FAILURES),
    listing_page(
        "coordination",
        "Coordination",
        "Locks, leaders, the tree of nodes, statuses by key, and connections that listen to channels; PostgreSQL "
        "does not show which channels these are.",
        LOCKS,
        NODES,
        STATUSES,
        LISTENERS,
    ),
    listing_page(
        "routing",
        "Routing",
        "Exchanges, the queues that are bound to them, and dead letters.",
        EXCHANGES,
        BINDINGS,
        DEAD_LETTERS,
    ),
    listing_page(
        "audit",
        "Audit trail",
        "Calls of operators' verbs. The role is the server's own word; the actor is what the session said of itself.",
        AUDIT,
    ),
    listing_page(
        "server",
        "Server",
        "What the queues need of PostgreSQL: connections, vacuum, and no old snapshot.",
        SERVER,
        SNAPSHOTS,
        CONNECTIONS,
        TABLES,
    ),
)
