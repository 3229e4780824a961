"""Ask pip-audit for known vulnerabilities of the pinned packages. Prints a line for each, and for unknown ones.

    python tools/audit.py PIP_AUDIT REQUIREMENTS

An answer never fails the run: an advisory that was published today is no fault of the commit that is tested. pip-audit
itself reports "No known vulnerabilities found", with exit code 0, when its service knows none of the packages; here
each package without an answer is named.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

PATIENCE = 300  # seconds for all packages
NOTHING = "known vulnerabilities: unknown"


def asked(program: str, requirements: str) -> Iterator[str]:
    """The lines to print."""
    command = [program, "--requirement", requirements, "--no-deps", "--disable-pip", "--format", "json"]
    command += ["--progress-spinner", "off", "--timeout", "15"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired:
        yield f"{NOTHING}: pip-audit gave no answer within {PATIENCE} s"
        return
    except OSError as error:
        yield f"{NOTHING}: pip-audit cannot be run: {error.strerror}"
        return
    try:
        found = json.loads(done.stdout)["dependencies"]
    except (ValueError, KeyError):
        last = done.stderr.strip().rpartition("\n")[2] or f"exit code {done.returncode}"
        yield f"{NOTHING}: pip-audit failed: {last[:200]}"
        return
    yield from told(found)


def told(found: list[dict[str, Any]]) -> Iterator[str]:
    """The lines for an answer of pip-audit."""
    unknown = [package["name"] for package in found if "skip_reason" in package]
    if unknown:
        which = ", ".join(unknown) if len(unknown) < len(found) else "the service cannot be reached, or knows none"
        yield f"{NOTHING} for {len(unknown)} of {len(found)} packages: {which}"
    for package in found:
        for fault in package.get("vulns", []):
            fixed = ", ".join(fault.get("fix_versions", [])) or "no version"
            yield f"known vulnerability: {fault['id']} in {package['name']} {package['version']}, fixed in {fixed}"


if __name__ == "__main__":
    for line in asked(*sys.argv[1:]):
        print(line)
