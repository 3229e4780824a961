-- How many objects of each kind a role may make: 2_base/quotas.sql.

CREATE TABLE pgqueue.quota (
    what        text        PRIMARY KEY,
    number      bigint      CHECK (number >= 0)
);
COMMENT ON TABLE  pgqueue.quota        IS 'How many objects of each kind one role may have made: set_quota.';
COMMENT ON COLUMN pgqueue.quota.number IS 'NULL: without limit.';

INSERT INTO pgqueue.quota (what, number)
VALUES ('queues', 10000), ('exchanges', 10000), ('bindings', 10000), ('batches', 10000), ('nodes', 10000),
       ('schedules', 10000), ('sessions', 10000), ('payloads', 1073741824);
