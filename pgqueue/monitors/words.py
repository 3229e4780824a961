"""The findings of `pgqueue.health` and the reasons of `pgqueue.why`, as sentences with a remedy.

The dashboard and `pgqueue top` show them. `backquotes` mark a command for a shell, a statement of SQL, or a name.
`{queue}` and `{subject}` in them are the names that why() returned.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

_names = re.compile(r"\{(\w+)\}")


class Words(NamedTuple):
    """A sentence about a finding, its remedy, and the page that shows more."""

    said: str
    remedy: str
    page: str | None = None


#: By the status of a check.
GRADES = {"bad": "Bad", "warn": "Look", "ok": "Well"}
ALL_WELL = "All checks pass."
#: Of the parts of the overview.
HEADINGS = {"still": "Queues that stand still", "later": "Queues that wait for a time"}

#: By the name of a check.
CHECKS = {
    "standby": Words("This server is a standby.", "Point the dashboard at the primary: queues do not work here."),
    "oldest_ready": Words(
        "A task has been ready for long.", "Look at why its queue stands still; add workers if all are busy.", "workers"
    ),
    "unattended": Words(
        "Tasks could run, and no client is connected that could take them.",
        "Start a worker: `pgqueue worker app:client`.",
        "workers",
    ),
    "unserved": Words(
        "Tasks could run in queues that no worker serves.",
        "Start the worker of these queues, or add them to one: `pgqueue worker app:client --queue NAME`.",
        "workers",
    ),
    "tick": Words(
        "No client has looked for due tasks for a while: delays, schedules and dead workers are not noticed.",
        "Start any client: a worker, or `pgqueue schedule clock`.",
        "workers",
    ),
    "late_schedule": Words(
        "A schedule is late.",
        "Start a worker of its role; if its put was refused, the page of schedules says why.",
        "schedules",
    ),
    "missing": Words(
        "A client lost its connection and was not cleared away yet.",
        "Its tasks return when its grace is over. If it stays, look for a foreign lock.",
        "workers",
    ),
    "buried": Words(
        "Tasks failed for good and wait for a decision.", "Mend the cause, then retry or delete them.", "failures"
    ),
    "paused": Words("Queues with ready tasks are paused.", "Resume them, unless the pause is meant."),
    "draining": Words("Queues refuse puts while they empty.", "Let them accept puts again, unless this is a shutdown."),
    "full": Words(
        "Queues are at their capacity: puts wait or are refused.",
        "Add workers, or raise the option `capacity` of the queue.",
    ),
    "oldest_snapshot": Words(
        "An old snapshot keeps dead rows from being removed; tables grow.",
        "End that transaction: `{snapshot}`",
        "server",
    ),
    "oldest_snapshot_xids": Words(
        "An old snapshot keeps the rows of many transactions from being removed.",
        "End it: `{snapshot}`",
        "server",
    ),
    "dead_rows": Words(
        "A table has many dead rows.", "See whether autovacuum keeps up, and what holds it back.", "server"
    ),
    "autovacuum_off": Words("Autovacuum is off for tables of pgqueue: they only grow.", "Turn it on again.", "server"),
    "wraparound": Words("The oldest transaction id is old.", "Let autovacuum run; end what holds it back.", "server"),
    "notification_queue": Words(
        "The server's notification queue fills up. Once it is full, commits that notify fail.",
        "End the listener that stays in a transaction.",
        "server",
    ),
    "foreign_locks": Words(
        "A connection that is no client of pgqueue holds its locks and stops takes or puts.",
        "End it: `SELECT pg_terminate_backend(PID)`.",
        "server",
    ),
    "held_up": Words(
        "A transaction that stays open keeps calls of others waiting.",
        "Commit it, or end its connection: `SELECT pg_terminate_backend(PID)`.",
        "server",
    ),
    "lost_roles": Words("Roles have privileges and cannot use them.", "CREATE ROLE them, then `pgqueue migrate up`."),
    "strange_objects": Words(
        "The schema holds objects of other roles.", "Look at what they do, and drop them; then `pgqueue migrate up`."
    ),
}

#: By the reason of why() for a queue.
REASONS = {
    "paused": Words("The queue is paused.", "Resume it."),
    "draining": Words("The queue refuses puts.", "Accept puts again."),
    "full": Words(
        "The queue is full: puts wait or are refused.",
        "Add workers, or raise its capacity: `pgqueue alter {queue} capacity=N`.",
    ),
    "restricted": Words(
        "Only some roles may use the queue.",
        "Grant the role of the worker its verbs: `pgqueue grant ROLE take --queue {queue}`.",
    ),
    "no right": Words(
        "A client is connected whose role may not take from the queue.",
        "Let the owner of the schema grant it: `pgqueue grant {subject} take --queue {queue}`.",
    ),
    "exclusive": Words("Only one client may take from the queue.", "See whether that client still works.", "workers"),
    "died": Words(
        "Processes die while they have tasks of the queue.",
        "Set the task aside that comes first, and look at its data; retry it once its job is mended.",
        "workers",
    ),
    "no taker": Words(
        "No taker waits for the tasks of the queue.",
        "Start one: `pgqueue worker app:client`. If it ends at once, it says why: its role may lack a right.",
        "workers",
    ),
    "busy": Words(
        "All workers of the queue are busy, or stand still.", "Add one: `pgqueue worker app:client`.", "workers"
    ),
    "locked": Words(
        "A taker waits and does not get the tasks: an open transaction has locked them.",
        "End that transaction: the page of the server names it.",
        "server",
    ),
    "taken": Words("A worker has tasks of the queue.", "They end by themselves, or release them to other workers."),
    "blocked": Words(
        "A lane is busy.", "Its next task begins when that one ends; cancel that one, or set it aside if it hangs."
    ),
    "failing": Words(
        "Attempts fail, and are made again later.", "Mend the cause; then the tasks can run at once.", "failures"
    ),
    "delayed": Words("Tasks are for later.", "Run them now, if that is meant."),
    "scheduled": Words(
        "The queue is empty. Its next task comes from a schedule.", "Run it now, if that is meant.", "schedules"
    ),
    "buried": Words("Tasks failed for good.", "Mend the cause, then retry or delete them.", "failures"),
    "waiting": Words("A limit is reached.", "Tasks wait for a place. Raise the limit: `{limit}`", "limits"),
}


def filled(command: str, names: Mapping[str, str]) -> str:
    """A command with these names, in one pass: a name that holds {another} is not changed."""
    return _names.sub(lambda found: names.get(found[1], found[0]), command)
