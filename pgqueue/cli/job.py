"""`pgqueue job`: the jobs of an application, and a task of one of them."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import click

from .. import AsyncTask, Client, Cluster, Job, Task
from ..jobs.clients import AnyClient
from .applications import load
from .connecting import at_once
from .grouping import Group
from .plainly import WRONG, Fault, plainly
from .printing import column, echo, echo_all
from .values import (
    COUNT,
    JSON,
    KEY,
    LANE,
    MOMENT,
    POSITIVE_SECONDS,
    PRIORITY,
    QUEUE,
    SECONDS,
    json_lines,
)


@click.group(cls=Group)
def job() -> None:
    """The jobs of an application: list them, or put a task of one."""


@job.command("list")
@click.argument("app", metavar="MODULE:CLIENT")
@json_lines
@plainly
def list_jobs(app: str, as_json: bool) -> None:
    """List the jobs of MODULE:CLIENT with their queues and parameters. Connects to no server."""
    jobs = sorted(load(app).jobs.values(), key=lambda one: one.name)
    echo_all(
        jobs,
        as_json,
        _described,
        ("JOB", column("QUEUE", folds=True), column("KIND", 1), column("PARAMETERS", folds=True)),
        lambda one: (one.name, one.queue, "async" if one.is_async else "sync", _parameters(one) or None),
    )


@job.command("put")
@click.argument("app", metavar="MODULE:CLIENT")
@click.argument("name", metavar="JOB")
@click.argument("args", metavar="[ARGUMENTS]", type=JSON, default="{}")
@click.option("-q", "--queue", type=QUEUE, help="In place of the job's own.")
@click.option("--priority", type=PRIORITY, help="The lowest is taken first.")
@click.option("--delay", type=SECONDS, help="Seconds until the task is ready.")
@click.option("--at", "run_at", type=MOMENT, help="When the task is ready, as 2030-01-31T08:00:00Z; not with --delay.")
@click.option("--ttr", type=POSITIVE_SECONDS, help="Time to run, seconds.")
@click.option("--ttl", type=POSITIVE_SECONDS, help="Time to live, seconds.")
@click.option("--lane", type=LANE, help="The tasks of a lane are handled strictly one after another.")
@click.option("--key", type=KEY, help="At most one task that is not done has this key.")
@click.option("--attempts", type=COUNT, help="Failed attempts before a burial, in place of the job's.")
@json_lines
@click.pass_obj
@plainly
def put_job(dsn: str | None, app: str, name: str, args: Any, as_json: bool, **options: Any) -> None:
    """Put a task of JOB, and print its id.

    ARGUMENTS is a JSON object, for example '{"to": "ada@example.org"}'. It is checked as a worker checks it: nothing is
    put if an argument is missing, unknown or of the wrong type.
    """
    if dsn:
        os.environ["PGQUEUE_DSN"] = dsn  # for a client that is made without one
    client = load(app)
    at_once(client)
    if (found := client.jobs.find(name)) is None:
        known = ", ".join(sorted(client.jobs)) or "none"
        raise Fault(f"{app} has no job {name!r}; its jobs: {known}", WRONG)
    given = {name: value for name, value in options.items() if value is not None}
    task = _put(client, found, given, args)
    echo({"id": task.id, "queue": task.queue, "state": task.state, "existed": task.existed}, str(task.id), as_json)


def _put(client: AnyClient, found: Job[..., Any], given: Any, args: Any) -> Task | AsyncTask:
    """Put the task as the client's own code would, for the sake of its middleware, and close the client."""
    if isinstance(client, Client | Cluster):
        try:
            return found.options(**given).put_json(args)
        finally:
            client.close()

    async def put() -> AsyncTask:
        try:
            return await found.options(**given).aput_json(args)
        finally:
            await client.close()

    return asyncio.run(put())


def _described(one: Job[..., Any]) -> dict[str, Any]:
    parameters = {
        name: {"type": _spelled(parameter.annotation), "optional": parameter.optional}
        for name, parameter in one.signature.parameters.items()
    }
    return {"job": one.name, "queue": one.queue, "async": one.is_async, "parameters": parameters}


def _parameters(one: Job[..., Any]) -> str:
    return ", ".join(
        f"{name}: {_spelled(parameter.annotation)}" + (f" = {parameter.default!r}" if parameter.optional else "")
        for name, parameter in one.signature.parameters.items()
    )


def _spelled(annotation: Any) -> str:
    return annotation.__name__ if isinstance(annotation, type) else str(annotation).removeprefix("typing.")
