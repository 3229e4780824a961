"""Unknown options: the option that the caller may have meant, also by its name in other libraries."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

#: What Celery, RQ, Dramatiq, Huey and procrastinate call it, and how it is written here. The first one that the call
#: has is meant.
WORDS = {
    "acks_late": ("nothing: a task is acked after its run",),
    "autoretry_for": ("retry=Retry(on=...)",),
    "countdown": ("delay",),
    "default_retry_delay": ("retry=Retry(delay=...)",),
    "depends_on": ("after",),
    "eta": ("run_at",),
    "expires": ("ttl",),
    "ignore_result": ("keep_result",),
    "job_id": ("key",),
    "job_timeout": ("timeout",),
    "max_retries": ("attempts", "retry=Retry(attempts=...)"),
    "queueing_lock": ("key", "unique_data"),
    "queue_name": ("queue",),
    "rate_limit": ("rate=Rate(...)",),
    "result_ttl": ("keep_result",),
    "retries": ("attempts", "retry=Retry(attempts=...)"),
    "retry_backoff": ("retry=Retry(delay=..., factor=...)",),
    "retry_delay": ("retry=Retry(delay=...)",),
    "retry_kwargs": ("retry=Retry(...)",),
    "schedule_at": ("run_at",),
    "schedule_in": ("delay",),
    "soft_time_limit": ("soft_timeout",),
    "task_id": ("key",),
    "time_limit": ("timeout",),
    "unique": ("unique_data",),
}


def unknown(call: str, name: str, known: Iterable[str]) -> str:
    """That a call has no such option, in words."""
    names = list(known)
    meant = [word for word in WORDS.get(name, ()) if not word.isidentifier() or word in names]
    meant = meant or difflib.get_close_matches(name, names, 1)
    return f"{call} has no option {name!r}{f': did you mean {meant[0]}?' if meant else ':'} It has {', '.join(names)}"
