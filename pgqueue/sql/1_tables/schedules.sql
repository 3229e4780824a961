-- Schedules, and the keys of puts that are unique for a time.

CREATE TABLE pgqueue.schedule (
    name        text        COLLATE "C" PRIMARY KEY CHECK (length(name) BETWEEN 1 AND 200),
    role        name        NOT NULL,
    role_id     oid         GENERATED ALWAYS AS (pgqueue._role_id(role)) STORED,
    queue       text        NOT NULL CHECK (length(queue) BETWEEN 1 AND 200),
    cron        text        CHECK (octet_length(cron) <= 255),
    every       interval    CHECK (every >= '1 s' AND every <= '1000000000 s'),
    tz          text        NOT NULL CHECK (octet_length(tz) <= 255),
    missed      text        NOT NULL CHECK (missed IN ('none', 'one', 'all')),
    data        jsonb       NOT NULL,
    options     jsonb       NOT NULL CHECK (jsonb_typeof(options) = 'object'),
    paused      boolean     NOT NULL DEFAULT false,
    declared    text        CHECK (octet_length(declared) <= 255),
    removed_at  timestamptz CHECK (removed_at IS NULL OR declared IS NOT NULL),
    created_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    counts_from timestamptz NOT NULL DEFAULT clock_timestamp(),
    next_at     timestamptz,
    last_at     timestamptz,
    last_task   bigint,
    error       text,
    revision    int         NOT NULL DEFAULT 1,
    CHECK ((cron IS NULL) <> (every IS NULL))
);
COMMENT ON TABLE  pgqueue.schedule             IS
    'Tasks that are put into a queue again and again: 6_families/schedules.sql.';
COMMENT ON COLUMN pgqueue.schedule.role        IS
    'The role that set it: the tasks are put with its rights.';
COMMENT ON COLUMN pgqueue.schedule.queue       IS 'By its name: a queue that was deleted is created again by a put.';
COMMENT ON COLUMN pgqueue.schedule.cron        IS 'A cron expression with 5 fields, or with 6: the first is seconds.';
COMMENT ON COLUMN pgqueue.schedule.every       IS 'In place of cron: at the multiples of this time since 1970, in UTC.';
COMMENT ON COLUMN pgqueue.schedule.tz          IS 'The time zone of cron, as Europe/Berlin.';
COMMENT ON COLUMN pgqueue.schedule.missed      IS
    'For occurrences while no client ran to fire them: put none of them, one for all, or all.';
COMMENT ON COLUMN pgqueue.schedule.options     IS
    'The options of each put: priority, delay, ttr, ttl, lane, key, if_exists.';
COMMENT ON COLUMN pgqueue.schedule.declared    IS 'The program whose code declares it. NULL: it was set by a call.';
COMMENT ON COLUMN pgqueue.schedule.removed_at  IS
    'Since when the code of `declared` does not declare it any more. It fires until it is deleted.';
COMMENT ON COLUMN pgqueue.schedule.counts_from IS 'Occurrences after this time count, if next_at is NULL.';
COMMENT ON COLUMN pgqueue.schedule.next_at     IS
    'The first occurrence that was not fired. NULL: a client has to find it. infinity: there is none.';
COMMENT ON COLUMN pgqueue.schedule.last_at     IS 'The last occurrence that was fired, or when it was run by hand.';
COMMENT ON COLUMN pgqueue.schedule.error       IS 'Why it does not fire now. NULL: it does.';
COMMENT ON COLUMN pgqueue.schedule.revision    IS
    'Counts the changes: occurrences found for an earlier revision do not fire this one.';

CREATE INDEX schedule_next  ON pgqueue.schedule (next_at) WHERE NOT paused;
CREATE INDEX schedule_role  ON pgqueue.schedule (role_id);
CREATE INDEX schedule_queue ON pgqueue.schedule (queue COLLATE "C");

CREATE TABLE pgqueue.recent_key (
    queue_id    int         NOT NULL,
    key         text        COLLATE "C" NOT NULL,
    expires_at  timestamptz NOT NULL,
    task_id     bigint,
    PRIMARY KEY (queue_id, key)
) WITH (autovacuum_vacuum_scale_factor = 0.02);
COMMENT ON TABLE  pgqueue.recent_key            IS
    'Keys of puts that are unique for a time, also after their task has ended: 5_verbs/put/unique.sql.';
COMMENT ON COLUMN pgqueue.recent_key.expires_at IS 'After this time the row counts as absent.';
COMMENT ON COLUMN pgqueue.recent_key.task_id    IS 'The task that was put. NULL within the transaction that puts it.';

CREATE INDEX recent_key_expires ON pgqueue.recent_key (expires_at);
