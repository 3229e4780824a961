"""A client whose role has other settings than PostgreSQL's defaults works as any other."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

SETTINGS = {
    "DateStyle": "'German, DMY'",
    "IntervalStyle": "sql_standard",
    "TimeZone": "'America/New_York'",
    "bytea_output": "escape",
    "extra_float_digits": "-15",
    "standard_conforming_strings": "off",
    "default_transaction_isolation": "serializable",
    "default_transaction_deferrable": "on",
    "search_path": "nothing",
    "client_encoding": "LATIN1",
    "array_nulls": "off",
    "transform_null_equals": "on",
    "quote_all_identifiers": "on",
    "xmloption": "document",
    "plan_cache_mode": "force_custom_plan",
}
EACH = {name: {name: value} for name, value in SETTINGS.items()} | {"all": SETTINGS}
QUICK = ("DateStyle", "all")


@pytest.fixture(params=[name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in EACH])
def odd(request: pytest.FixtureRequest, db: psycopg.Connection) -> Iterator[str]:
    """A role with such settings."""
    role = f"odd_{uuid.uuid4().hex[:12]}"
    db.execute(f"CREATE ROLE {role} LOGIN SUPERUSER PASSWORD 'odd'")  # type: ignore[arg-type]  # names of our own
    for name, value in EACH[request.param].items():
        db.execute(f"ALTER ROLE {role} SET {name} = {value}")  # type: ignore[arg-type]
    yield role
    db.execute(f"DROP ROLE {role}")  # type: ignore[arg-type]


async def test_the_settings_of_a_role_change_nothing(shell, dsn, odd):
    client = shell.client(make_conninfo(dsn, user=odd, password="odd"))
    queue = client.queue("q")
    text = "a\\'\N{EURO SIGN}"
    put = await queue.put({"a": 1.5, "text": text, "none": [None]}, ttl=1000.5, ttr=500)
    task = await queue.take(0)
    assert (task.id, task.data) == (put.id, {"a": 1.5, "text": text, "none": [None]})
    seen = await task.peek()
    assert timedelta(seconds=400) < seen.deadline - datetime.now(UTC) <= timedelta(seconds=500)
    await task.release(0.01)
    again = await queue.take(30)
    assert again.id == put.id
    await again.release(1000)
    assert (await queue.peek(put.id)).run_at > datetime.now(UTC) + timedelta(seconds=900)
    assert (await queue.stats())["delayed"] == 1
    assert await queue.kick(delayed=True) == 1
    async with client.lock("l"):
        await (await queue.take(0)).ack()
    assert await queue.take(0) is None
