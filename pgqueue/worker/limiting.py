"""The limits of a worker's jobs: it declares them in the database before its first claim.

A limit belongs to a queue and a job. So a worker declares the limit of a job in the job's own queue, and in each queue
that it serves and that is no job's own. It does not declare it in the queues of other jobs: a limit makes takes of the
whole queue cost more. Each name of a job counts by itself, aliases included.
"""

from __future__ import annotations

from collections.abc import Iterator

from .._calls.limits import Terms, declare_limit
from .._sync.client import Client
from .._values.logs import log
from .served import Served


def declare(client: Client, served: Served) -> None:
    """Declare the limits of all jobs, and that the others have none. Raises as client.limits.declare()."""
    for queue, name, terms in sorted(_limits(served), key=lambda one: one[:2]):
        done = client.shell.run(declare_limit(queue, name, terms))
        if done == "kept":
            log.warning("the limit of job %s in queue %s was set by hand, and stays until it is dropped", name, queue)
        elif done != "same":
            log.info("the limit of job %s in queue %s was %s: %s", name, queue, done, shown(terms) or "none")


def shown(terms: Terms) -> str:
    """A limit in words; empty: none."""
    parts = [f"{terms.concurrency} at once"] if terms.concurrency is not None else []
    if terms.rate is not None:
        parts.append(f"{terms.rate} in {terms.seconds:g} s")
    each = f" for each {terms.argument}" if terms.argument is not None else ""
    return f"{' and '.join(parts)}{each}"


def _limits(served: Served) -> Iterator[tuple[str, str, Terms]]:
    own = served.jobs.by_queue()
    for queue in served.queues:
        for job in own.get(queue) or served.jobs.values():
            for name in (job.name, *job.aliases):
                yield queue, name, job.limit
