"""pgqueue in a Flask application: settings, the session's transaction, handlers in an app context, and commands.

The extension may be created before any application, and serve several. An application's client is in its `extensions`,
and is found through current_app.
"""

from __future__ import annotations

import weakref
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar, Unpack, overload

from flask import Flask, current_app

from ... import Client, Worker
from ..._values import arguments
from ..._values.arguments import Seconds
from ..._values.timetable import timetable
from ...jobs.options import DEFAULTS, BatchHandler, JobPolicies, Policies, Settings
from ...jobs.registering import Register, registering
from ...jobs.registry import Registry
from ...jobs.starts import AnyStart, LoopStart, Start, made
from .commands import commands
from .contexts import in_context
from .isolated import child_setup
from .jobs import Home, registered
from .json import serialize_records
from .queues import FlaskQueue
from .settings import SettingError, client_options

__all__ = ["FlaskQueue", "PgQueue", "SettingError"]

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")


class Installed(NamedTuple):
    """The value of an application's extensions["pgqueue"]."""

    extension: PgQueue
    client: Client


class PgQueue:
    """The extension.

    Args:
        app: the application; or call init_app() later, for one or several.
        db: Flask-SQLAlchemy's SQLAlchemy, or another object with a `session`. Puts are then part of its transaction.

    Attributes:
        jobs: the jobs, by name; `jobs.defaults` has the policies that job_defaults() sets.
        middleware: objects around the put and the run of every job, as Client.middleware.

    Each option of pgqueue.Client has a setting, in capitals and with the prefix PGQUEUE_: PGQUEUE_POOL_SIZE,
    PGQUEUE_SESSION_GRACE and so on. Without PGQUEUE_DSN the client uses SQLALCHEMY_DATABASE_URI if there is a `db`,
    else the default of a Client without a dsn.

    Raises:
        SettingError: a setting does not exist or is not valid. A ValueError; `flask` prints it as one line.
        RuntimeError: the application has this extension already.
    """

    def __init__(self, app: Flask | None = None, db: Any = None) -> None:
        self._db = db
        self._handlers: dict[str, tuple[Callable[..., Any], Seconds | None]] = {}
        self.jobs = Registry()
        self.middleware: list[Any] = []
        self._starts: list[AnyStart] = []
        self._clients: weakref.WeakSet[Client] = weakref.WeakSet()  # of the applications
        self._batch_handlers: dict[str, BatchHandler] = {}
        self._schedules: list[Callable[[Client], object]] = []
        if app is not None:
            self.init_app(app)

    def init_app(self, app: Flask) -> None:
        """Give an application its client, the commands `flask pgqueue ...`, and jsonify() for tasks and other records.

        Does not connect. Raises as above.
        """
        if "pgqueue" in app.extensions:
            raise RuntimeError("this application has a PgQueue already: use that one")
        options = client_options(app.config, with_db=self._db is not None)
        client = Client(**options)
        client.starts += self._starts
        self._clients.add(client)
        app.extensions["pgqueue"] = Installed(self, client)
        app.cli.add_command(commands)
        serialize_records(app)

    @property
    def client(self) -> Client:
        """The current application's client. It connects at its first call, in each process separately.

        Raises RuntimeError if there is no current application, or if it does not have this extension.
        """
        installed: Installed | None = current_app.extensions.get("pgqueue")
        if installed is None or installed.extension is not self:
            raise RuntimeError(f"the application {current_app.name!r} does not have this PgQueue: call init_app(app)")
        return installed.client

    def queue(self, name: str) -> FlaskQueue:
        """The queue of this name, in the application that is current when the queue is used.

        If there is a `db`, puts are part of db.session's transaction. Puts into `client.queue(name)` are not: they take
        effect at once.
        """
        return FlaskQueue(self, name)

    def handler(self, queue: str, *, keep_result: Seconds | None = None) -> Callable[[F], F]:
        """Register a function as the handler of a queue's tasks, for `flask pgqueue worker`; as Client.handler.

        Each call has an app context of its own, so current_app and db.session work, and the session is removed at the
        end of the call, as after a request.
        """
        arguments.queue_name(queue)
        arguments.seconds("keep_result", keep_result, positive=True)

        def register(function: F) -> F:
            self._handlers[queue] = function, keep_result
            return function

        return register

    def batch_handler(self, queue: str, n: int = 100) -> Callable[[F], F]:
        """Register a function that handles up to `n` tasks of a queue at once; as Client.batch_handler.

        Each call has an app context of its own, as a handler has.
        """
        arguments.queue_name(queue)
        arguments.count("n", n)

        def register(function: F) -> F:
            self._batch_handlers[queue] = BatchHandler(function, n)
            return function

        return register

    def cron(self, cron: str | None = None, *, every: Seconds | None = None, **options: Any) -> Callable[[F], F]:
        """Schedule a job or the handler of a queue: a decorator, above @queues.job or @queues.handler.

        A worker of an application sets the schedule when it starts.

        Args:
            cron, every, options: as for Client.cron.

        Raises:
            ValueError, ImportError: as Client.cron; errors of the function and the options are raised when a worker is
                made.
        """
        timetable(cron, arguments.seconds("every", every), options.get("tz", "UTC"))

        def register(function: F) -> F:
            self._schedules.append(lambda client: client.cron(cron, every=every, **options)(function))
            return function

        return register

    @overload
    def on_start(self, function: Callable[[], AsyncIterator[T]], /) -> LoopStart[T]: ...
    @overload
    def on_start(self, function: Callable[[], Iterator[T]], /) -> Start[T]: ...
    def on_start(self, function: Callable[[], Any], /) -> AnyStart:
        """Register a generator function as a hook of workers: a decorator; as Client.on_start.

        In `flask pgqueue worker` and in child processes the hook of a process has an app context. That of an event loop
        has none.
        """
        hook: AnyStart = made(function)
        self._starts.append(hook)
        for client in self._clients:
            client.starts.append(hook)
        return hook

    def job(
        self,
        queue: str | None = None,
        *,
        name: str | None = None,
        aliases: Sequence[str] = (),
        **policies: Unpack[JobPolicies],
    ) -> Register:
        """Make a function a job; as Client.job.

        If there is a `db`, `put` and `put_many` are part of db.session's transaction, in the current application;
        `aput` never is. Each run has an app context of its own, as a handler has.

        Args:
            queue, name, aliases, policies: as for Client.job. With isolation="process" a child process makes the
                application again, by its import path; see worker().

        Raises:
            ValueError: as Client.job.
        """
        return registering(Home(self), queue, name, aliases, policies)

    def job_defaults(self, *, queue: str | None = None, **policies: Unpack[Policies]) -> None:
        """Set policies for the jobs that leave them open; as Client.job_defaults."""
        self.jobs.defaults = Settings.of(DEFAULTS, queue, policies)

    def worker(self, *, app: str | None = None, **options: Any) -> Worker:
        """A worker for the jobs and handlers, in the current application.

        Args:
            app: where a child process finds the application, as for `flask --app`: a module, `shop:app`, or a factory,
                `shop:create_app` or `shop:create_app('test')`. Only jobs with isolation="process" need it. The command
                `flask pgqueue worker` gives its own. Default: None.
            options: those of pgqueue.Worker.

        Raises:
            ValueError: as Worker; or a job needs `app`.
        """
        # The application itself and not the proxy: the worker's threads have no current one. Flask's types hide this.
        present: Flask = current_app._get_current_object()  # type: ignore[attr-defined]  # see above
        client = self.client
        for queue, (function, keep) in self._handlers.items():
            client.handler(queue, keep_result=keep)(function)
        for schedule in self._schedules:  # before the handlers are others in its eyes
            schedule(client)
        client.handlers = {queue: in_context(present, function) for queue, function in client.handlers.items()}
        for queue, many in self._batch_handlers.items():
            client.batch_handler(queue, many.n)(in_context(present, many.function))
        self.client.jobs = registered(self, present)
        self.client.child_setup = partial(child_setup, self.client.jobs, app)
        return Worker(self.client, **options)

    def session(self) -> Any:
        """The session of the puts: db.session, or None."""
        return None if self._db is None else self._db.session
