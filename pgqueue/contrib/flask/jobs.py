"""Jobs of an extension, which may have no application yet, or several."""

from __future__ import annotations

from typing import Any, Protocol

from flask import Flask

from ... import AsyncQueue, Client
from ...jobs.registry import Registry
from ...jobs.starts import AnyStart
from .contexts import InContext
from .queues import FlaskQueue


class Extension(Protocol):
    """The part of a PgQueue that jobs use."""

    jobs: Registry
    middleware: list[Any]

    @property
    def client(self) -> Client: ...
    def queue(self, name: str) -> FlaskQueue: ...


class Home:
    """The home of the extension's jobs: they are put in the current application, in its session's transaction."""

    def __init__(self, extension: Extension) -> None:
        self._extension = extension

    @property
    def jobs(self) -> Registry:
        return self._extension.jobs

    @property
    def middleware(self) -> list[Any]:
        return self._extension.middleware

    @property
    def starts(self) -> list[AnyStart]:
        return self._extension.client.starts

    def blocking_queue(self, name: str) -> FlaskQueue:
        return self._extension.queue(name)

    def awaiting_queue(self, name: str) -> AsyncQueue:
        return self._extension.client.aio.awaiting_queue(name)


class InApp(Home):
    """The same in a worker of one application: runs have an app context, outside of all other middleware."""

    def __init__(self, extension: Extension, app: Flask) -> None:
        super().__init__(extension)
        self._context = InContext(app)

    @property
    def middleware(self) -> list[Any]:
        return [self._context, *self._extension.middleware]


def registered(extension: Extension, app: Flask) -> Registry:
    """The extension's jobs for a worker of an application."""
    home, jobs = InApp(extension, app), Registry()
    jobs.defaults = extension.jobs.defaults
    for job in extension.jobs.values():
        jobs.add(job.at(home))
    return jobs
