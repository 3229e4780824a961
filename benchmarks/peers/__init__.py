"""Other queues with the same work: put one by one, put by 1,000, drain with one and two processes, idle pick-up.

`python -m benchmarks --peers` installs them into a venv of their own, and runs a small program for each (programs/) in
round robin with pgqueue. contenders.py lists them, environment.py installs, cell.py runs one round of one contender.
"""

from __future__ import annotations

import sys
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from ..load import busy
from ..options import Options
from ..peers_table import sections
from ..server import Server, serve
from ..store import Store
from .cell import Addresses, Cell
from .contenders import CONTENDERS, Contender
from .environment import environment, install

BEATS = 100
Found = dict[str, list[float]]


def measure(options: Options, store: Store) -> int:
    """Measure all that can be installed and run; returns 1 if one of them failed."""
    failures: dict[str, str] = {}
    with ExitStack() as stack:
        server = stack.enter_context(serve(options.pg))
        python = stack.enter_context(environment(options.venv))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pgqueue-peers-")))
        stack.enter_context(busy(options.load))
        cells, about = {}, {}
        for each in CONTENDERS:
            try:
                cells[each] = _prepare(each, options, server, python, folder)
                about[each.name] = cells[each].describe()
            except Exception as error:  # the others can be measured
                failures[each.name] = str(error)
        found: dict[str, Found] = {}
        conditions = [*server.conditions(options.load), f"{options.rounds} rounds, in round robin; medians"]
        tasks = {each.name: _tasks(each, options) for each in CONTENDERS}
        store.peers = {"conditions": conditions, "about": about, "found": found, "tasks": tasks, "failures": failures}
        for turn in range(options.rounds):
            _round(options, cells, found, failures)
            if options.into:
                store.write(options.into)
            print(f"round {turn + 1} of {options.rounds}", file=sys.stderr, flush=True)
    print(*sections(store.peers), sep="\n\n")
    return 1 if failures else 0


def _prepare(each: Contender, options: Options, server: Server, python: Path, folder: Path) -> Cell:
    if each.packages:
        install(python, each.packages)
    interpreter = python if each.packages else Path(sys.executable)
    addresses = _addresses(each, options, server)
    return Cell(interpreter, each.program, addresses, folder, cleared=each.store != "postgresql")


def _addresses(each: Contender, options: Options, server: Server) -> Addresses:
    if each.store == "postgresql":
        return server.database
    url = {"redis": options.redis, "rabbitmq": options.rabbitmq}[each.store]

    @contextmanager
    def queue() -> Iterator[str]:
        yield f"{url}#pgqueue-bench-{uuid.uuid4().hex[:12]}"

    return queue


def _round(options: Options, cells: dict[Contender, Cell], found: dict[str, Found], failures: dict[str, str]) -> None:
    """Add the figures of one round. A contender that fails is named, and has no further turn."""
    for each, cell in cells.items():
        if each.name in failures:
            continue
        try:
            figures = cell.measure(_tasks(each, options), BEATS // 4 if options.quick else BEATS)
        except Exception as error:
            failures[each.name] = str(error)
            found.pop(each.name, None)
            continue
        for figure, value in figures.items():
            found.setdefault(each.name, {}).setdefault(figure, []).append(value)


def _tasks(each: Contender, options: Options) -> int:
    return each.tasks // 10 if options.quick else each.tasks
