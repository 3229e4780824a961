"""Child processes of a project's worker, for jobs and tasks with isolation="process".

A child is a new interpreter, so it shares no connection with the worker. It sets Django up with the worker's settings
module, and imports the tasks.py of each app. Without such a module, where settings.configure() has made the settings,
a child could not know them.

A task of django.tasks runs in the child, and its worker sends the framework's signals. The order to the child has the
parts of the run's TaskResult; the child makes it again, for the task's context and for the outcome.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import django
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.db import connections
from django.utils.module_loading import autodiscover_modules

from ...jobs.clients import WithJobs
from ...jobs.setups import ChildSetup
from .tidy import TIDY


def child_setup(client: WithJobs) -> ChildSetup | None:
    """The setup of the child processes of a client's workers; None: no job runs in one.

    Raises ImproperlyConfigured: there are jobs for them, and the settings are not those of a module.
    """
    isolated = [job.name for job in client.jobs.values() if job.settings.isolation == "process"]
    isolated += [f"queue {queue}" for queue, tasks in client.registries.items() if getattr(tasks, "isolated", False)]
    if not isolated:
        return None
    module = settings.SETTINGS_MODULE
    if not module:
        raise ImproperlyConfigured(
            f"pgqueue: {isolated[0]} has isolation='process', and a child process cannot know these settings: it needs"
            " the module that DJANGO_SETTINGS_MODULE names, without settings.configure() and override_settings"
        )
    names = {alias: connections[alias].settings_dict["NAME"] for alias in connections}
    given = {alias: str(name) for alias, name in names.items() if name}
    return ChildSetup(f"{__name__}:set_up", {"module": module, "names": given})


def set_up(module: str, names: Mapping[str, str]) -> list[Any]:
    """Set Django up; in a child. Returns the middleware around each run there.

    Args:
        module: of the settings.
        names: of the databases in the worker, by alias: a test runner has put others in place of those of the settings.
    """
    os.environ["DJANGO_SETTINGS_MODULE"] = module
    settings.LOGGING_CONFIG = None  # log records are sent to the worker, and to its handlers
    for alias, name in names.items():
        connections.settings[alias]["NAME"] = name
    django.setup()
    autodiscover_modules("tasks")
    return [TIDY]
