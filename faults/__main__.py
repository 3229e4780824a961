"""`python -m faults`: choose faults, run the arenas, print the table."""

from __future__ import annotations

import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import click

from pgqueue.embedded import binaries

from . import report, settings
from .arena import Arena, Options, Planned, failed
from .kinds import FAULTS, missing
from .ledger import Proof, Violation

#: A fault's name, how often, and seconds if not the fault's own.
Plan = dict[str, tuple[int, float | None]]

SHORT: Plan = {
    "kill": (40, None),
    "stop": (2, 1.0),
    "restart-fast": (1, None),
    "restart-immediate": (1, None),
    "terminate-all": (2, None),
    "terminate-some": (2, None),
    "terminate-listeners": (2, None),
    "lock-table": (4, 1.5),
    "create-index": (2, 1.0),
    "vacuum-full": (1, None),
    "open-transaction": (1, 1.5),
    "snapshot": (1, 1.5),
    "black-hole": (1, 2.0),
    "black-hole-reset": (1, 2.0),
    "late": (1, 2.0),
    "delay": (1, 2.0),
    "cut": (2, None),
    "halve": (1, 2.0),
    "garble": (1, 2.0),
}
LONG: Plan = {
    "kill": (1000, None),
    "stop": (20, None),
    "restart-fast": (50, None),
    "restart-immediate": (50, None),
    "terminate-all": (10, None),
    "terminate-some": (10, None),
    "terminate-listeners": (10, None),
    "lock-table": (56, 4.0),
    "alter-table": (5, None),
    "create-index": (5, None),
    "vacuum-full": (2, None),
    "open-transaction": (3, 5.0),
    "snapshot": (2, 10.0),
    "black-hole": (20, 30.0),
    "black-hole-reset": (3, 30.0),
    "late": (5, None),
    "delay": (2, None),
    "cut": (10, None),
    "halve": (10, None),
    "garble": (10, None),
    "unplug": (2, None),
    "failover-async": (10, None),
    "failover-sync": (10, None),
    "pooler-restart": (5, None),
    "pooler-kill": (5, None),
    "transaction-pooler-restart": (5, None),
    "transaction-pooler-kill": (5, None),
    "disk-full": (3, None),
    "clock-forward": (3, None),
    "clock-back": (3, None),
}
FAMILIES = {  # short names on the command line
    "restart": ("restart-fast", "restart-immediate"),
    "terminate": ("terminate-all", "terminate-some", "terminate-listeners"),
    "tables": ("lock-table", "alter-table", "create-index", "vacuum-full", "open-transaction", "snapshot"),
    "network": ("black-hole", "black-hole-reset", "late", "delay", "cut", "halve", "garble"),
    "failover": ("failover-async", "failover-sync"),
    "pooler": ("pooler-restart", "pooler-kill", "transaction-pooler-restart", "transaction-pooler-kill"),
    "clock": ("clock-forward", "clock-back"),
}
FOLDER = click.Path(file_okay=False, path_type=Path)


@click.command()
@click.argument("names", nargs=-1, metavar="[FAULT]...")
@click.option("--short", is_flag=True, help="A few of each fault that needs no tools: about a minute.")
@click.option("--long", is_flag=True, help="All faults, the important ones many times: about half an hour.")
@click.option("--times", type=click.IntRange(min=1), help="How often to do each fault.")
@click.option("--seconds", type=click.FloatRange(min=0), help="How long each fault lasts, of those that last.")
@click.option("--seed", type=int, default=1, show_default=True, help="For the random choices.")
@click.option("--rate", type=click.FloatRange(min=1), default=100.0, show_default=True, help="Puts a second.")
@click.option("--bound", type=click.FloatRange(min=0), default=30.0, show_default=True, help="Seconds to be back.")
@click.option("--dsn", help="A server that runs already; the rig makes a database of its own there.")
@click.option("--bindir", type=FOLDER, help="PostgreSQL's programs, for private clusters of another version.")
@click.option(
    "--parallel", type=click.IntRange(min=1), help="Arenas at the same time; 2 with --short and --long, else 1."
)
@click.option("--report", "file", type=click.Path(path_type=Path), help="Write the table to this file too.")
@click.option("--keep", type=FOLDER, help="Leave the journals and the processes' output in this folder.")
def main(
    names: tuple[str, ...],
    short: bool,
    long: bool,
    times: int | None,
    seconds: float | None,
    parallel: int | None,
    file: Path | None,
    **options: object,
) -> None:
    """Do FAULTs to processes at work, and prove from their journals that nothing went wrong.

    Exits with 1 if there is a violation, and lists it. Without a FAULT, --short or --long it lists the faults.
    """
    given = Options(**options)  # type: ignore[arg-type]
    plan = _plan(names, short, long, times, seconds)
    if not plan:
        _list()
        return
    began = time.monotonic()
    arenas, left_out = _arenas(plan, given)
    proofs, broken = _run(arenas, given, parallel or (2 if short or long else 1))
    version = _version(given)
    text = [
        report.conditions(version, time.monotonic() - began, given.seed, given.rate),
        "",
        report.table(proofs),
        "",
        *report.summary(proofs),
    ]
    text += [f"Left out: {name}: {why}." for name, why in left_out.items()]
    click.echo("\n".join(text))
    if file is not None:
        file.write_text("\n".join(text) + "\n")
    found = report.violations(proofs) + [violation.text for violation in broken]
    if found:
        click.echo("\n".join(["", f"{len(found)} violations:", *found]))
        click.echo("\n".join(["", "The journals around the first one of each setting:", *report.around(proofs)]))
        sys.exit(1)


def _plan(names: tuple[str, ...], short: bool, long: bool, times: int | None, seconds: float | None) -> list[Planned]:
    """The faults to do. Names choose among those of --short or --long, and without these among all."""
    chosen = [one for name in names for one in FAMILIES.get(name, (name,))]
    if unknown := [name for name in chosen if name not in FAULTS]:
        raise click.BadParameter(f"there is no fault {', '.join(unknown)}; there are {', '.join([*FAULTS, *FAMILIES])}")
    base: Plan = SHORT if short else LONG if long else dict.fromkeys(FAULTS, (1, None)) if chosen else {}
    return [
        Planned(
            FAULTS[name],
            times or number,
            (seconds if seconds is not None else length if length is not None else FAULTS[name].seconds),
        )
        for name, (number, length) in base.items()
        if not chosen or name in chosen
    ]


def _arenas(plan: list[Planned], options: Options) -> tuple[dict[str, list[Planned]], dict[str, str]]:
    """The faults by setting, and those that cannot be done here, with the reasons."""
    arenas: dict[str, list[Planned]] = {}
    left_out: dict[str, str] = {}
    reasons: dict[str, str | None] = {}
    for planned in plan:
        name, setting = planned.fault.name, planned.fault.setting
        if options.dsn is not None and (setting not in settings.ANYWHERE or name.startswith("restart")):
            left_out[name] = "it needs a server that the rig may stop"
            continue
        if setting not in reasons:
            reasons[setting] = missing(setting)
        if (why := reasons[setting]) is not None:
            left_out[name] = why
        else:
            arenas.setdefault(setting, []).append(planned)
    return arenas, left_out


def _run(arenas: dict[str, list[Planned]], options: Options, parallel: int) -> tuple[list[Proof], list[Violation]]:
    """Run the arenas, the longest first if several run at the same time. Ctrl-C and SIGTERM end all in order."""
    stopping = threading.Event()
    order = sorted(arenas, key=lambda name: -sum(one.times * (one.seconds + 1) for one in arenas[name]))
    proofs: dict[str, Proof] = {}
    broken: list[Violation] = []
    signal.signal(signal.SIGTERM, signal.default_int_handler)

    def one(name: str) -> None:
        try:
            proofs[name] = Arena(name, arenas[name], options, stopping, lambda text: click.echo(text, err=True)).run()
        except Exception as error:  # the other arenas may still tell something
            broken.append(failed(name, error))
            click.echo(broken[-1].text, err=True)

    with ThreadPoolExecutor(parallel) as threads:
        try:
            for future in [threads.submit(one, name) for name in order]:
                future.result()
        except BaseException:
            stopping.set()
            threads.shutdown(cancel_futures=True)
            raise
    return [proofs[name] for name in arenas if name in proofs], broken


def _version(options: Options) -> str:
    if options.dsn is None:
        return binaries.discover(options.bindir).version
    import psycopg

    with psycopg.connect(options.dsn) as conn:
        return str(conn.info.parameter_status("server_version"))


def _list() -> None:
    for name, fault in FAULTS.items():
        why = missing(fault.setting)
        does = " ".join((fault.act.__doc__ or name).split())
        click.echo(f"{name:28}{does}" + (f" [left out here: {why}]" if why else ""))


if __name__ == "__main__":
    main()
