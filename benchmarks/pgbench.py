"""Running a script with pgbench, and reading its rate."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from pathlib import Path

LIMIT = 120  # seconds, for any one run


def rate(
    pgbench: Path, dsn: str, script: str, *, clients: int = 1, seconds: int | None = None, transactions: int = 0
) -> float:
    """Scripts a second, by the clock, without the time it takes to connect; for `seconds`, or `transactions` in all."""
    length = ["-T", str(seconds)] if seconds else ["-t", str(transactions // clients)]
    with tempfile.NamedTemporaryFile("w", suffix=".sql") as file:
        file.write(script)
        file.flush()
        jobs = min(clients, os.cpu_count() or 1)
        command = [str(pgbench), "-n", "-M", "prepared", "-c", str(clients), "-j", str(jobs), *length, "-f", file.name]
        ended = subprocess.run([*command, dsn], capture_output=True, text=True, timeout=LIMIT)
    found = re.search(r"^tps = ([\d.]+)", ended.stdout, re.MULTILINE)
    if ended.returncode or not found:
        raise RuntimeError(f"pgbench failed: {ended.stderr.strip()[-500:]}")
    return float(found[1])
