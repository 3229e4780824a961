"""`manage.py pgqueue`: the commands for a project's queues, on the databases of its settings."""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any

import psycopg
from django.core.exceptions import ImproperlyConfigured
from django.core.management import BaseCommand, CommandError, CommandParser, call_command
from django.db import DatabaseError, connections, transaction
from django.utils import autoreload

from pgqueue import Error, migrate
from pgqueue._engine.outages import COMING
from pgqueue._values.marked import restored
from pgqueue.contrib.django import clients, working
from pgqueue.worker.health import address, answering
from pgqueue.worker.leaving import leaving
from pgqueue.worker.shares import read
from pgqueue.worker.supervisor import follow, own_line, supervise

CHUNK = 1000  # tasks a statement
STATS = ("queue", "ready", "delayed", "taken", "buried", "blocked", "total", "done", "kept", "oldest_ready_age")
AGE = "extract(epoch FROM oldest_ready_age)::float"
OF_WORKER = (
    "queues",
    "exclude",
    "concurrency",
    "shares",
    "max_attempts",
    "retry_delay",
    "time_limit",
    "soft_time_limit",
    "max_child_tasks",
    "max_child_memory",
    "grace",
)
EXPLAINED = (Error, ValueError, ImproperlyConfigured, DatabaseError, psycopg.Error)


class Command(BaseCommand):
    help = "Run workers, show queues, put tasks, and upgrade the schema."

    def add_arguments(self, parser: CommandParser) -> None:
        commands = parser.add_subparsers(dest="command", required=True, metavar="worker|migrate|stats|put")
        _worker_arguments(commands.add_parser("worker", help="Run the jobs and handlers in the apps' tasks.py."))
        _migrate_arguments(commands.add_parser("migrate", help="Upgrade or remove the schema of the queues."))
        _stats_arguments(commands.add_parser("stats", help="Show the number of tasks of each queue."))
        _put_arguments(commands.add_parser("put", help="Put a task, or many."))

    def handle(self, *args: Any, command: str, **options: Any) -> None:
        step: Callable[..., None] = getattr(self, f"_{command}")
        try:
            step(**options)
        except EXPLAINED as error:
            raise CommandError(_line(error)) from error

    def _worker(
        self,
        database: list[str],
        reload: bool,
        processes: int | None,
        health: str | None,
        check: bool,
        verbosity: int,
        **options: Any,
    ) -> None:
        if verbosity > 1:
            logging.basicConfig(level="INFO", format="%(asctime)s %(levelname)s %(message)s")
        place = _place(health)
        line, given = own_line(), {name: options[name] for name in OF_WORKER}
        given["shares"] = dict(given["shares"])
        if processes is not None and reload:
            raise CommandError("--reload is for one process: leave out --processes")
        if processes is not None and line is None and not check:
            supervisor = supervise(processes, given["grace"])
            with answering(place, supervisor.report):
                code = supervisor.run()
            sys.exit(code)

        def work() -> None:
            workers = working.workers(database, **given)
            if line is None:
                for worker in workers:
                    with contextlib.nullcontext() if check else contextlib.suppress(*COMING):
                        worker.home.conninfo(0)
                    self.stdout.write(f"{'would work' if check else 'working'} on {worker.banner()}")
            if not check:
                report = partial(working.report, workers)
                with (
                    answering(place if line is None else None, report),
                    contextlib.nullcontext() if reload else leaving(workers),
                ):
                    if line is not None:
                        follow(line, report, workers[0].stop)
                    working.run(workers)
            clients.close()

        def work_until_the_code_changes() -> None:
            try:
                work()
            except EXPLAINED as error:
                self.stderr.write(_line(error))

        if reload:
            autoreload.run_with_reloader(work_until_the_code_changes)
        else:
            work()

    def _migrate(self, database: str, down: bool, force: bool, verbosity: int, **options: Any) -> None:
        clients.wrapper(database)
        if force and not down:
            raise CommandError("--force needs --down")
        if force:
            migrate.down(clients.conninfo(database), revision="base", force=True)  # then Django only has to record it
        target = ["zero"] if down else []
        call_command("migrate", "pgqueue", *target, database=database, verbosity=verbosity)
        self.stdout.write(str(migrate.status(clients.conninfo(database))))

    def _stats(self, database: str, as_json: bool, **options: Any) -> None:
        clients.wrapper(database)
        with connections[database].cursor() as cursor:
            cursor.execute(f"SELECT {', '.join(STATS[:-1])}, {AGE} FROM pgqueue.stats ORDER BY queue")
            rows = [dict(zip(STATS, row, strict=True)) for row in cursor.fetchall()]
        if as_json:
            self.stdout.write(json.dumps(rows))
        else:
            self.stdout.write("\n".join(_table(rows)))

    def _put(self, database: str, queue: str, data: str, **options: Any) -> None:
        home = clients.queue(queue, database)
        given = {
            name: options[name] for name in ("priority", "delay", "ttr", "ttl", "lane") if options[name] is not None
        }
        if data != "-":
            task = home.put(_decoded(data, "DATA"), **given)
            self.stdout.write(str(task.id))
            return
        items, count = _lines(sys.stdin), 0
        with transaction.atomic(using=database):  # all of them, or none
            while chunk := list(islice(items, CHUNK)):
                count += len(home.put_many(chunk, **given))
        self.stdout.write(f"{count} tasks")


def _place(health: str | None) -> tuple[str, int] | None:
    try:
        return None if health is None else address(health)
    except ValueError as error:
        raise CommandError(f"argument --health: {error}") from None


def _line(error: Exception) -> str:
    return " ".join(str(error).split())


def _worker_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--database", action="append", default=[], metavar="ALIAS", help="Default: all databases with handlers."
    )
    parser.add_argument(
        "-q",
        "--queue",
        action="append",
        default=[],
        dest="queues",
        metavar="QUEUE",
        help="Serve this queue; repeatable. Default: all of them.",
    )
    parser.add_argument(
        "--exclude", action="append", default=[], metavar="QUEUE", help="Do not serve this queue; repeatable."
    )
    parser.add_argument("-c", "--concurrency", type=int, default=8, help="Handlers that run at once; default 8.")
    parser.add_argument(
        "--share",
        action="append",
        type=_share,
        default=[],
        dest="shares",
        metavar="QUEUE=N",
        help="At most N handlers of this queue at once; repeatable. Default: all but one, of four or more.",
    )
    parser.add_argument("--max-attempts", type=int, default=20, help="Failed attempts before a burial; default 20.")
    parser.add_argument("--retry-delay", type=float, default=1.0, help="Seconds, doubled at each attempt; default 1.")
    parser.add_argument("--time-limit", type=float, help="Seconds for a handler; default: no limit.")
    parser.add_argument("--soft-time-limit", type=float, help="Seconds until SoftTimeLimit is raised in a handler.")
    parser.add_argument(
        "--max-child-tasks", type=_count, help="Tasks after which a process of isolated jobs is replaced."
    )
    parser.add_argument("--max-child-memory", type=_count, help="Bytes of memory after which it is replaced.")
    parser.add_argument(
        "--grace", type=_grace, default=30, help="Seconds for handlers under way at a stop, or none; default 30."
    )
    parser.add_argument(
        "--processes", type=_count, metavar="N", help="Run so many worker processes, and start those again that die."
    )
    parser.add_argument(
        "--health", metavar="[HOST:]PORT", help="Answer GET /live and /ready there. Default host: 127.0.0.1."
    )
    parser.add_argument(
        "--check", action="store_true", help="Import, connect, print what would be served, and exit with 0 or 1."
    )
    parser.add_argument("--reload", action="store_true", help="Restart when code changes; for development.")


def _share(text: str) -> tuple[str, int]:
    try:
        return read(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _count(text: str) -> int:
    if (count := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"{count} is below 1")
    return count


def _grace(text: str) -> float | None:
    return None if text == "none" else float(text)


def _migrate_arguments(parser: argparse.ArgumentParser) -> None:
    _database_argument(parser)
    parser.add_argument("--down", action="store_true", help="Remove the schema; refuses if tasks would be lost.")
    parser.add_argument("--force", action="store_true", help="With --down: remove it even if tasks are lost.")


def _stats_arguments(parser: argparse.ArgumentParser) -> None:
    _database_argument(parser)
    parser.add_argument(
        "--json", action="store_true", dest="as_json", help="Print a JSON list of objects, for scripts."
    )


def _put_arguments(parser: argparse.ArgumentParser) -> None:
    _database_argument(parser)
    parser.add_argument("queue")
    parser.add_argument("data", help="JSON; or - for standard input, one task a line, in one transaction.")
    parser.add_argument("--priority", type=int, help="The lowest is taken first.")
    parser.add_argument("--delay", type=float, help="Seconds until the task is ready.")
    parser.add_argument("--ttr", type=float, help="Time to run, in seconds.")
    parser.add_argument("--ttl", type=float, help="Time to live, in seconds.")
    parser.add_argument("--lane", help="The tasks of a lane are handled one after another.")


def _database_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--database", default="default", metavar="ALIAS", help="The alias in DATABASES; default: default."
    )


def _decoded(text: str, where: str) -> Any:
    try:
        return restored(json.loads(text))
    except ValueError as error:
        raise CommandError(f"{where} is not JSON: {error}") from None


def _lines(file: Iterable[str]) -> Iterator[Any]:
    return (_decoded(line, f"line {n}") for n, line in enumerate(file, 1) if line.strip())


def _table(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Right-aligned numbers under their names."""
    cells = [list(STATS)] + [[_cell(row[name]) for name in STATS] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for name, *numbers in cells:
        yield "  ".join(
            [name.ljust(widths[0])] + [n.rjust(width) for n, width in zip(numbers, widths[1:], strict=True)]
        )


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.1f}" if isinstance(value, float) else str(value)
