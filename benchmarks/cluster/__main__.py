"""`python -m benchmarks.cluster`: measure, and print the tables of docs/guides/growing.md."""

from __future__ import annotations

import argparse
import os
import statistics
from collections import Counter

import psycopg

from . import __doc__ as about
from . import costs, spread, statements, waiting
from .costs import AGAIN, BLOCKS, CLIENT, CLIENTS_3, CLUSTER_1, CLUSTER_3
from .servers import One, calls, running


def main() -> None:
    options = _options()
    most = max(waiting.SIZES) if {"waiting", "spread"} & {*options.only} else costs.SIZES[CLUSTER_3]
    with running(most, options.bindir) as servers:
        _show_conditions(servers[0])
        if "statements" in options.only:
            _show_statements(statements.measured(servers[:3]))
        if "cpu" in options.only:
            _show_cpu(costs.cpu(servers[:3], options.rounds))
        if "waiting" in options.only:
            _show_waiting(waiting.measured(servers, options.seconds), options.seconds)
        if "spread" in options.only:
            _show_spread(spread.measured(servers))
    print(f"\nload average at the end: {os.getloadavg()[0]:.0f}")


def _show_conditions(one: One) -> None:
    with psycopg.connect(one.dsn("postgres")) as conn:
        version = conn.info.parameter_status("server_version")
    print(f"{os.cpu_count()} CPUs, PostgreSQL {version}, load average {os.getloadavg()[0]:.0f}")


def _show_statements(found: dict[str, dict[str, Counter[str]]]) -> None:
    names = (CLIENT, CLUSTER_1, CLUSTER_3)
    print(f"\n| statements of a task | {' | '.join(names)} |\n|---|--:|--:|--:|")
    for verb, by_name in found.items():
        print(f"| {verb} | {' | '.join(f'{statements.per_task(verb, by_name[name]):.4f}' for name in names)} |")
    for verb, by_name in found.items():
        for name in names:
            print(f"    {verb}, {name}: {calls(by_name[name])} {dict(by_name[name])}")


def _show_cpu(found: costs.Found) -> None:
    names = (AGAIN, CLUSTER_1, BLOCKS, CLIENTS_3, CLUSTER_3)
    print(f"\n| CPU time of a task | | {CLIENT} | {' | '.join(names)} | {CLUSTER_3} / {CLIENTS_3} |")
    print(f"|---|---|{'--:|' * (len(names) + 2)}")
    for verb, by_name in found.items():
        for part in ("server", "client", "both"):
            times = {name: [_part(cost, part) for cost in each] for name, each in by_name.items()}
            pairs = [*((name, CLIENT) for name in names), (CLUSTER_3, CLIENTS_3)]
            shown = (_ratio(times[ours], times[theirs]) for ours, theirs in pairs)
            print(f"| {verb} | {part} | {statistics.median(times[CLIENT]) * 1e6:.0f} us | {' | '.join(shown)} |")


def _ratio(ours: list[float], theirs: list[float]) -> str:
    low, middle, high = costs.quartiles(ours, theirs)
    return f"{middle:.2f} ({low:.2f} to {high:.2f})"


def _part(cost: costs.Cost, part: str) -> float:
    return {"server": cost.server, "client": cost.client, "both": cost.server + cost.client}[part]


def _show_waiting(found: dict[str, dict[int, waiting.Waiting]], seconds: float) -> None:
    print(f"\n| in {seconds:.0f} s | servers | statements of ticks, for each server | others |\n|---|--:|--:|---|")
    for kind, by_size in found.items():
        for n, one in by_size.items():
            print(f"| {kind} | {n} | {one.ticks / n:.0f} | {dict(one.others) or 'none'} |")
    print("\n| | servers | threads | connections to each server |\n|---|--:|--:|--:|")
    for kind, by_size in found.items():
        for n, one in by_size.items():
            print(f"| {kind} | {n} | {dict(one.threads)} | {one.connections} |")


def _show_spread(found: dict[int | None, spread.Settled]) -> None:
    print(f"\n{spread.WORKERS} worker processes")
    print("| spread | connections to the home server | to each other one | threads of a worker | settled | again |")
    print("|---|--:|--:|--:|--:|--:|")
    for k, one in found.items():
        home, *others = one.connections
        print(
            f"| {k or 'all'} | {home} | {min(others)} to {max(others)} | {one.threads:.0f} | {one.started:.1f} s"
            f" | {one.again:.1f} s |"
        )
    for k, one in found.items():
        print(f"    {k}: {one.connections}, changes {one.changes}, after the kill {one.workers}, home {dict(one.home)}")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cluster", description=(about or "").split("\n\n")[0])
    parts = ["statements", "cpu", "waiting", "spread"]
    parser.add_argument("--bindir", help="of PostgreSQL's programs; default: those of the embedded server")
    parser.add_argument("--rounds", type=int, default=30, help="of the CPU times; default: 30")
    parser.add_argument("--seconds", type=float, default=30, help="to watch what waits; default: 30")
    parser.add_argument("--only", choices=parts, nargs="+", default=parts, help="default: all")
    return parser.parse_args()


if __name__ == "__main__":
    main()
