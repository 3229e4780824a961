"""Writes docs/reference/verbs.md from calls of every verb on tasks in every state: `python tools/verbs.py [DSN]`.

tests/helpers/verb_calls.py has the calls; tests/sql/test_verb_table.py makes them again, and compares the page.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import psycopg
from psycopg.conninfo import make_conninfo

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "reference" / "verbs.md"

sys.path.insert(0, str(ROOT / "tests" / "helpers"))

import verb_calls  # noqa: E402

HEAD = """\
<!-- Written by tools/verbs.py from tests/helpers/verb_calls.py: change that, and run it again. -->

# Verbs and states

What each verb does to a task, by the state that the task is in and the cause that brought it there. The tests make
every call of this page. [SQL functions](sql.md) has the arguments.

| entry | means |
|---|---|
| ready, buried and so on | the state of the task after the call; `gone`: it is not there any more |
| attempts 1 | the number of failed attempts, if the call changed it |
| done | the call was carried out, and the state is the same as before |
| *not taken* and so on | the problem that the call reports; it has changed nothing |
| `PQ002` and so on | the SQLSTATE of the error |
| — | the call does not concern the task |

*taken by another* means another take: also one of the caller's own. A task of which the time to live or the time to run
is over counts as expired or as given back from that moment on, before a tick acts on it. In Python *not found*, *not
taken* and *taken by another* are `TaskNotFound`, `TaskNotTaken` and `TaskTakenByOther`.
"""


def page(dsn: str) -> str:
    """The text of the page, from calls in an empty database that has the schema."""
    lines = [HEAD]
    for title, verbs, entries in verb_calls.table(dsn):
        lines += [f"## {title}", "", f"| state | {' | '.join(verbs)} |", "|---" * (len(verbs) + 1) + "|"]
        lines += [f"| {name} | {' | '.join(found)} |" for name, found in entries.items()]
        lines.append("")
    return "\n".join(lines).rstrip("\n") + "\n"


def main(dsn: str | None = None) -> None:
    """Write the page from a new database, dropped afterwards, on the embedded server or on the server of a DSN."""
    from pgqueue import embedded, migrate

    name = f"pgqueue_verbs_{os.getpid()}"
    with psycopg.connect(dsn or embedded.default_server().dsn(), autocommit=True) as admin:
        admin.execute(f"CREATE DATABASE {name}")
        try:
            fresh = make_conninfo(admin.info.dsn, dbname=name, password=admin.info.password)
            migrate.up(fresh)
            PAGE.write_text(page(fresh), "utf-8")
        finally:
            admin.execute(f"DROP DATABASE {name} WITH (FORCE)")


if __name__ == "__main__":
    main(*sys.argv[1:])
