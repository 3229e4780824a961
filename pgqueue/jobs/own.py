"""The policies of one task, in place of those of its job: as options() gets them, and in the task's data.

They are stored under the key `own`, which jsonb writes right after the name of the job: so a worker sees at a known
place that a task has none (worker/dispatch.py). A Retry has only numbers and flags here. Its `on`, `never` and `choose`
are code, and stay those of the job.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from .._values import arguments
from .retry import Retry

CODE = ("on", "never", "choose")
PLAIN = {name: value for name, value in asdict(Retry()).items() if name not in CODE}


def written(retry: Any, timeout: Any, keep_result: Any) -> dict[str, Any]:
    """The policies as JSON values; those that are None are left out. Raises ValueError."""
    own = {
        "timeout": arguments.seconds("timeout", timeout, positive=True),
        "keep_result": arguments.seconds("keep_result", keep_result),
        "retry": None if retry is None else _written(retry),
    }
    return {name: value for name, value in own.items() if value is not None}


def read(own: Mapping[str, Any], of_job: Retry | None) -> dict[str, Any]:
    """The settings in place of the job's. Raises ValueError, TypeError: SQL has put something else."""
    found = {name: own[name] for name in ("timeout", "keep_result") if name in own}
    if "retry" in own:
        code = of_job or Retry()
        found["retry"] = replace(Retry(**own["retry"]), **{name: getattr(code, name) for name in CODE})
    return found


def _written(retry: object) -> dict[str, Any]:
    if not isinstance(retry, Retry):
        raise ValueError(f"retry must be a Retry, not {retry!r}")
    if any(getattr(retry, name) for name in CODE):
        raise ValueError(
            "the Retry of one task has no on, never or choose, since its data cannot hold code: those of the job apply"
        )
    return {name: getattr(retry, name) for name, value in PLAIN.items() if getattr(retry, name) != value}
