"""The command line."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import NamedTuple

from .measures import MAIN, MEASURES
from .server import CHOICES

DOCS = Path(__file__).parents[1] / "docs"
REDIS, RABBITMQ = "redis://127.0.0.1:6379/0", "amqp://guest:guest@127.0.0.1:5672//"
ROUNDS, QUICK_ROUNDS = 5, 3

HELP = """Measure pgqueue beside plain SQL on the same server, and print a table. Each finding goes into the file of
--into as soon as it is there; --render makes docs/benchmarks.md and docs/benchmarks.svg of such a file."""


class Options(NamedTuple):
    pg: str
    only: list[str]
    missing: bool
    rounds: int
    quick: bool
    load: int
    into: Path | None
    render: Path | None
    out: Path
    peers: bool
    venv: Path | None
    redis: str
    rabbitmq: str


def parse(arguments: list[str] | None = None) -> Options:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=HELP)
    parser.add_argument("--pg", default="embedded", metavar="SERVER", help=f"{CHOICES}; default embedded")
    parser.add_argument("--only", metavar="NAME,...", type=_names, help=f"of {', '.join(MEASURES)}")
    parser.add_argument("--main", action="store_true", help="only the measures that have the page's targets")
    parser.add_argument("--missing", action="store_true", help="only what the file of --into lacks, or what failed")
    parser.add_argument("--rounds", type=int, metavar="N", help=f"default {ROUNDS}, with --quick {QUICK_ROUNDS}")
    parser.add_argument("--quick", action="store_true", help="fewer tasks and rounds: rough figures")
    parser.add_argument("--load", type=int, default=0, metavar="N", help="measure beside N busy processes; default 0")
    parser.add_argument("--into", type=Path, metavar="FILE", help="a JSON file to keep the findings in")
    parser.add_argument(
        "--render", type=Path, metavar="FILE", help="write the page of such a file, and measure nothing"
    )
    parser.add_argument("--out", type=Path, default=DOCS, metavar="DIR", help="where to write it; default docs/")
    parser.add_argument(
        "--peers", action="store_true", help="measure other queues, which are installed into a new venv"
    )
    parser.add_argument("--venv", type=Path, metavar="DIR", help="keep the peers' venv there; default a temporary one")
    parser.add_argument("--redis", default=REDIS, metavar="URL", help=f"for Celery; default {REDIS}")
    parser.add_argument("--rabbitmq", default=RABBITMQ, metavar="URL", help=f"for Celery; default {RABBITMQ}")
    found = parser.parse_args(arguments)
    names = found.only or (list(MAIN) if found.main else list(MEASURES))
    rounds = found.rounds or (QUICK_ROUNDS if found.quick else ROUNDS)
    if found.missing and not found.into:
        parser.error("--missing needs --into")
    kept = {name: getattr(found, name) for name in Options._fields}
    return Options(**{**kept, "only": names, "rounds": rounds})


def _names(value: str) -> list[str]:
    names = value.split(",")
    if unknown := set(names) - set(MEASURES):
        raise argparse.ArgumentTypeError(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(MEASURES)}")
    return names
