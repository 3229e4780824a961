"""The rival: a queue as it is usually written in PostgreSQL, at its best.

One table, a state column, UPDATE ... SET state = 'taken' with SKIP LOCKED, then DELETE. It has only the indexes that it
needs. It has no retries, no deadlines, no recovery, no fence and no wake-up, and does not pay for them. Its table has
the columns and the vacuum settings of pgqueue's table, as far as it needs them.
"""

from __future__ import annotations

import json
from typing import Any

PAYLOAD = 100  # bytes of JSON
QUEUE = 1

SCHEMA = """
CREATE TABLE conventional (
    id          bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    created_at  timestamptz NOT NULL DEFAULT now(),
    run_at      timestamptz,
    taken_at    timestamptz,
    queue_id    int         NOT NULL,
    priority    int         NOT NULL DEFAULT 0,
    attempts    int         NOT NULL DEFAULT 0,
    state       "char"      NOT NULL DEFAULT 'R',
    data        jsonb       NOT NULL
) WITH (
    autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0
);
CREATE INDEX ON conventional (queue_id, priority, id) WHERE state = 'R';
CREATE INDEX ON conventional (queue_id, run_at)       WHERE state = 'D';
"""

PUT = "INSERT INTO conventional (queue_id, data) VALUES (1, %s::text::jsonb)"
PUT_MANY = "INSERT INTO conventional (queue_id, data) SELECT 1, item FROM jsonb_array_elements(%s::text::jsonb) item"
TAKE_MANY = """
    UPDATE conventional SET state = 'T', taken_at = now()
     WHERE id = ANY (ARRAY (SELECT id FROM conventional WHERE queue_id = 1 AND state = 'R'
                             ORDER BY priority, id LIMIT %s FOR UPDATE SKIP LOCKED))
    RETURNING id, data::text"""
ACK_MANY = "DELETE FROM conventional WHERE id = ANY (%s::int8[])"

# Scripts for pgbench. Both takes return the task's data, as a taker needs it.
BATCH = """
WITH taken AS (
    UPDATE conventional SET state = 'T', taken_at = now()
     WHERE id = ANY (ARRAY (SELECT id FROM conventional WHERE queue_id = 1 AND state = 'R'
                             ORDER BY priority, id LIMIT 100 FOR UPDATE SKIP LOCKED))
    RETURNING id, data)
SELECT array_agg(id) AS ids, sum(length(data::text)) AS bytes FROM taken \\gset
DELETE FROM conventional WHERE id = ANY (:ids::bigint[]);
"""
TAKE_THEN_DELETE = """
UPDATE conventional SET state = 'T', taken_at = now()
 WHERE id = (SELECT id FROM conventional WHERE queue_id = 1 AND state = 'R'
              ORDER BY priority, id LIMIT 1 FOR UPDATE SKIP LOCKED)
RETURNING id, data \\gset
DELETE FROM conventional WHERE id = :id;
"""
DELETE_AT_ONCE = """
DELETE FROM conventional
 WHERE id = (SELECT id FROM conventional WHERE queue_id = 1 AND state = 'R'
              ORDER BY priority, id LIMIT 1 FOR UPDATE SKIP LOCKED)
RETURNING id, data;
"""


def item(n: int) -> dict[str, Any]:
    """The n-th task's data, PAYLOAD bytes as JSON."""
    data = {"to": "ada@example.org", "n": n, "text": ""}
    return {**data, "text": "x" * (PAYLOAD - len(_json(data)))}


def text(n: int) -> str:
    """The same as JSON."""
    return _json(item(n))


def _json(data: Any) -> str:
    return json.dumps(data, separators=(",", ":"))


# JSON with a space after each colon: otherwise pgbench would read variables.
ONE_PUT = f"INSERT INTO conventional (queue_id, data) VALUES (1, '{json.dumps(item(7))}');"
