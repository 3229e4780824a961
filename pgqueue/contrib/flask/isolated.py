"""Child processes of an application's worker, for jobs with isolation="process".

A child is a new interpreter, and makes the application again: it imports it, or calls its factory, by the path that
`flask --app` has. So an application that only a program's own code can make has no child processes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from flask.cli import ScriptInfo

from ...jobs.registry import Registry
from ...jobs.setups import ChildSetup
from .contexts import InContext

FOUND = ("wsgi.py", "app.py")  # where `flask` looks for an application without --app


def child_setup(jobs: Registry, app: str | None) -> ChildSetup | None:
    """The setup of a child process before the jobs; None: none of them runs in one.

    Args:
        app: the path of the application, as `flask --app` has it.

    Raises:
        ValueError: there is no path, and a job needs it.
    """
    isolated = [job.name for job in jobs.values() if job.settings.isolation == "process"]
    if not isolated:
        return None
    if app is None:
        raise ValueError(
            f"job {isolated[0]} has isolation='process', and a child process cannot find the application: name it, as"
            " `flask --app shop:create_app pgqueue worker` or as queues.worker(app='shop:create_app')"
        )
    return ChildSetup(f"{__name__}:set_up", {"app": app})


def set_up(app: str) -> list[Any]:
    """Make the application; in a child. Returns the middleware around each run there."""
    made = ScriptInfo(app_import_path=app).load_app()
    made.app_context().push()  # as in the worker's main thread, for hooks and modules
    return [InContext(made)]


def import_path(context: click.Context) -> str | None:
    """The path of the application of a command; None if `flask` has it from a function that cannot be imported."""
    script = context.find_object(ScriptInfo)
    if script is None:
        return None
    if (make := script.create_app) is not None:  # a script with a FlaskGroup of its own
        module, name = getattr(make, "__module__", "__main__"), getattr(make, "__qualname__", "<lambda>")
        return None if module == "__main__" or "<" in name else f"{module}:{name}"
    return script.app_import_path or next((file for file in FOUND if Path(file).is_file()), None)
