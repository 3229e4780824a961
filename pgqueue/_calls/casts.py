"""The cast of each argument: how the value of an argument stands in a statement.

An argument has the same SQL type in every function that has it, but for a few. Each has a cast, since psycopg types an
int by its size. A duration travels as seconds, JSON as text, and a role as its name.
"""

from __future__ import annotations

from typing import LiteralString

TEXT: LiteralString = "%s::pg_catalog.text"
INT: LiteralString = "%s::int"
BIGINT: LiteralString = "%s::bigint"
BOOLEAN: LiteralString = "%s::boolean"
JSONB: LiteralString = "%s::pg_catalog.jsonb"
UUID: LiteralString = "%s::pg_catalog.uuid"
MOMENT: LiteralString = "%s::pg_catalog.timestamptz"
SECONDS: LiteralString = "pg_catalog.make_interval(secs => %s::float)"
EPOCH: LiteralString = "pg_catalog.to_timestamp(%s::float)"
ROLE: LiteralString = "pg_catalog.quote_ident(%s::pg_catalog.text)::pg_catalog.regrole"
INTS: LiteralString = "%s::int[]"
BIGINTS: LiteralString = "%s::bigint[]"
BIGINTS_AS_TEXT: LiteralString = "%s::pg_catalog.text::bigint[]"  # columns() in call.py writes them
FLOATS: LiteralString = "%s::float[]"
TEXTS: LiteralString = "%s::pg_catalog.text[]"
MOMENTS: LiteralString = "%s::pg_catalog.timestamptz[]"

_ARGUMENTS: tuple[tuple[LiteralString, LiteralString], ...] = (
    (
        TEXT,
        "argument channel cron dead_letter dead_letter_key dsn ended_as error exchange if_exists job key label lane"
        " listen_dsn member"
        " missed name new_name on_failure path pattern payload queue reason source state traceback type tz verb worker",
    ),
    (
        INT,
        "after_priority burst capacity concurrency home max_size max_takes maxlen n number parent priority queue_id"
        " rate resume revision session version",
    ),
    (BIGINT, "after_id batch claim id new_token token writer"),
    (
        BOOLEAN,
        "alone auto_delete backwards counts delayed durable echo enabled ephemeral exclusive force hold_lane if_absent"
        " if_empty if_not_exists if_unused in_turn include_claimed include_delayed listed retain sequential shared"
        " temporary wait",
    ),
    (JSONB, "contains data items limits metadata options puts result results runs servers value"),
    (UUID, "cluster identity sender"),
    (MOMENT, "expected next_at run_at"),
    (SECONDS, "delay duration every expires grace keep keep_done more older per since ttl ttr unique_for"),
    (EPOCH, "began"),
    (ROLE, "role"),
    (INTS, "hearing in_line queue_ids"),
    (BIGINTS, "after ids tokens"),
    (FLOATS, "places waited"),
    (TEXTS, "except_for jobs keys lanes queues states verbs"),
    (MOMENTS, "occurrences"),
)

_USUAL = {name: cast for cast, names in _ARGUMENTS for name in names.split()}

#: The functions in which an argument has another type.
_OTHERS: dict[str, dict[str, LiteralString]] = {
    "ack_many": {"ids": BIGINTS_AS_TEXT, "tokens": BIGINTS_AS_TEXT},
    "act_on_tasks": {"after": JSONB},
    "copy_servers": {"version": BIGINT},
    "count_runs": {"batch": INT},
    "finish_many": {"ids": BIGINTS_AS_TEXT, "tokens": BIGINTS_AS_TEXT},
    "find_tasks": {"after": JSONB},
    "list_messages": {"after": TEXT},
    "next_due": {"ids": INTS},
    "register_worker": {"version": TEXT},
    "release_many": {"ids": BIGINTS_AS_TEXT, "tokens": BIGINTS_AS_TEXT},
    "search_tasks": {"after": JSONB},
    "take_many": {"after_id": BIGINTS, "after_priority": INTS},
}


def cast(function: str, name: str) -> LiteralString:
    """The placeholder of an argument, with its cast. Raises KeyError for one that has none here."""
    return _OTHERS.get(function, {}).get(name) or _USUAL[name]
