"""`pgqueue worker`, of functions and of coroutines, as the command runs it."""

from __future__ import annotations

import os

from .work import Work

#: How handlers.py, which the command loads, gets its Work: it runs in the same process.
current: list[Work] = []


def of_functions(work: Work) -> None:
    _command("functions", work)


def of_coroutines(work: Work) -> None:
    _command("coroutines", work)


def _command(client: str, work: Work) -> None:
    from pgqueue.cli import main  # not at the top: the other roles need no command line

    current.append(work)
    os.environ["PGQUEUE_DSN"] = work.dsn
    command = ["worker", f"faults.programs.handlers:{client}", "--retry-delay", "0.1", "--concurrency", "4"]
    main(command, standalone_mode=True)
