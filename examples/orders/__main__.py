"""Runs the application, before or after, or measures both; see the package's docstring."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from typing import Any

from . import shop, workers

SIDES = {"before": "Celery", "after": "pgqueue"}
LIMIT = 300  # seconds for one run


def run(side: str, orders: int, redis: bool) -> dict[str, Any]:
    """One day: its report, its mails, and the seconds from the first put to the last receipt."""
    with ExitStack() as stack:
        os.environ["SHOP_OUTBOX"] = f"{stack.enter_context(tempfile.TemporaryDirectory())}/outbox"
        if redis and side == "before":
            stack.enter_context(workers.redis())
        stack.enter_context(getattr(workers, side)())
        day = importlib.import_module(f"{__package__}.{side}").day
        began = time.monotonic()
        report = day(orders)
        while not (receipts := sorted(mail for mail in shop.outbox() if mail != "reminder"))[orders - 1 :]:
            time.sleep(0.005)
        seconds = time.monotonic() - began
        while "reminder" not in shop.outbox():
            time.sleep(0.05)
        return {"report": report, "receipts": receipts, "seconds": seconds}


def measure(orders: int, rounds: int, redis: bool) -> None:
    """Both sides in turn, each in a process of its own, and a table of the medians."""
    times: dict[str, list[float]] = {side: [] for side in SIDES}
    command = [sys.executable, "-m", __package__ or "", "run", "--orders", str(orders), *["--redis"] * redis]
    found: dict[str, Any] = {}
    for _ in range(rounds):
        for side in SIDES:
            done = subprocess.run([*command, side], check=True, capture_output=True, text=True, timeout=LIMIT)
            found[side] = json.loads(done.stdout)
            times[side].append(found[side].pop("seconds"))
        if found["before"] != found["after"]:
            raise SystemExit(f"the results differ: {found}")
    where = f"Python {platform.python_version()}, {os.cpu_count()} cores"
    print(f"{2 * orders + 1} tasks, {workers.PROCESSES} processes, {rounds} rounds; {where}")
    print("both reported:", dict(sorted(found["after"]["report"].items())))
    for side, seconds in times.items():
        middle = statistics.median(seconds)
        rate = (2 * orders + 1) / middle
        print(f"{SIDES[side]}: {middle:.2f} s ({min(seconds):.2f} to {max(seconds):.2f}), {rate:.0f} tasks/s")


def main() -> None:
    parser = argparse.ArgumentParser(prog=f"python -m {__package__}")
    actions = parser.add_subparsers(dest="action", required=True)
    for action in ("run", "measure"):
        part = actions.add_parser(action)
        part.add_argument("--orders", type=int, default=1000)
        part.add_argument("--redis", action="store_true", help="start a Redis for Celery; else it works in memory")
        if action == "run":
            part.add_argument("side", choices=SIDES)
        else:
            part.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    if options.action == "run":
        print(json.dumps(run(options.side, options.orders, options.redis)))
    else:
        measure(options.orders, options.rounds, options.redis)


if __name__ == "__main__":
    main()
