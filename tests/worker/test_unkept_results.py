"""Results that JSON or the database cannot hold: kept, they bury the task that has run; not kept, they do no harm."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest
from eventually import eventually
from running import running
from statements import rows

from pgqueue import Worker

pytestmark = pytest.mark.once


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["thread", "async", "process"])
def test_a_result_that_cannot_be_kept_fails_nothing_but_its_keeping(db, crunch: ModuleType, tmp_path: Path, kind: str):
    client, log = crunch.client, tmp_path / "runs"
    if kind == "process":
        kept, dropped = crunch.give_kept, crunch.give_and_drop
    elif kind == "thread":
        kept = client.job("q", name="kept", keep_result=60)(lambda kind, path: crunch.give(kind, path))
        dropped = client.job("q", name="dropped")(lambda kind, path: crunch.give(kind, path))
    else:

        async def give(kind, path):
            return crunch.give(kind, path)

        kept = client.job("q", name="kept", keep_result=60)(give)
        dropped = client.job("q", name="dropped")(give)
    for value in crunch.UNKEPT:
        kept.put(value, str(log))
        dropped.put(value, str(log))
    with running(Worker(client, queues=[kept.queue], concurrency=1, grace=1)):
        eventually(lambda: client.queue(kept.queue).stats()["buried"] == client.queue(kept.queue).stats()["total"])
    found = rows(db, "SELECT data ->> 'job', data -> 'args' ->> 'kind', attempts, error FROM pgqueue.tasks ORDER BY id")
    assert [(job, value, attempts) for job, value, attempts, _ in found] == [
        (kept.name, value, 1) for value in crunch.UNKEPT
    ]
    assert all(f"job {kept.name} has run, and its result cannot be kept: " in error for *_, error in found)
    assert sorted(log.read_text().split()) == sorted([*crunch.UNKEPT, *crunch.UNKEPT])
