"""The application of a command: the client or the cluster that MODULE:CLIENT names."""

from __future__ import annotations

import importlib
import os
import sys

import click

from ..jobs.clients import AnyClient
from ..worker.describing import describe


def load(app: str) -> AnyClient:
    """The client or cluster that MODULE:CLIENT names, searched from the current directory."""
    path, _, name = app.partition(":")
    if (here := os.getcwd()) not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(path)
    except Exception as error:  # of any kind: the module's code raised it
        why = str(error) if isinstance(error, ImportError) else describe(error)
        raise click.BadParameter(f"{path} cannot be loaded: {why}", param_hint="MODULE:CLIENT") from error
    name = name or "client"
    found = getattr(module, name, None)
    if not isinstance(found, AnyClient):
        what = f"a {type(found).__name__}, not a Client" if hasattr(module, name) else "not there"
        raise click.BadParameter(f"{name} of {path} is {what}", param_hint="MODULE:CLIENT")
    return found


def load_anew(app: str) -> AnyClient:
    """Load the client again, from the present files, in new modules: tasks under way go on in the old modules."""
    path = app.partition(":")[0]
    old = {name: module for name, module in sys.modules.items() if name == path or name.startswith(path + ".")}
    for name in old:
        del sys.modules[name]
    importlib.invalidate_caches()
    try:
        return load(app)
    except BaseException:
        sys.modules.update(old)
        raise
