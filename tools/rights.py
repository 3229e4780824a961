"""Writes docs/reference/rights.md from the table of the tests, tests/helpers/rights_calls.py: `python tools/rights.py`.

tests/sql/test_rights_matrix.py calls every line of that table as every kind of role, and compares the page.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "reference" / "rights.md"

sys.path.insert(0, str(ROOT / "tests" / "helpers"))

import rights_calls  # noqa: E402

HEAD = """\
<!-- Written by tools/rights.py from tests/helpers/rights_calls.py: change that, and run it again. -->

# Rights

Which roles may call each function, and read each view, of the schema `pgqueue`. The chapter Security explains the
verbs and how to grant them. The tests make every call of this page against a restricted queue of another role, and
compare all rows before and after.

| column | the role |
|---|---|
| none | has no privilege; with CONNECT on the database only |
| user | `grant_to(role)`: uses all open queues, and objects without a queue |
| other | `grant('other', role)`: uses another queue only |
| put, take, look, manage | `grant(queue, role, '{put}')` and so on: has one verb for the queue |
| monitor | `grant_monitor(role)` |
| owner | the owner of the schema, or a superuser |

| entry | means |
|---|---|
| yes | the call works for the restricted queue, its tasks, or what is shared |
| own | the call works for what is the role's own, or was granted to it; otherwise it is refused, or finds nothing |
| no | the role has no EXECUTE on the function, or no SELECT on the view |

A refusal has the SQLSTATE 42501. A token needs no privilege for the queue: a role with the verb `take`
for any queue may settle a task whose token it has. `bind` and `unbind` need the verb `share` besides `manage`, and
`publish` with `retain` needs it besides `put`. Only the owner of the schema deletes or renames a restricted queue.
Views hide columns too: monitors see no data, errors, keys and lanes.
"""

TITLES = ("none", *rights_calls.COLUMNS[1:])


def entry(calls: list[rights_calls.Call], kind: str) -> str:
    """The rights of a role of this kind to a function or view."""
    if any(call.expected(kind) == "allowed" for call in calls) or kind == "owner":
        return "yes"
    return "own" if any(call.passes(kind) for call in calls) else "no"


def table(title: str, entries: dict[str, list[rights_calls.Call]]) -> list[str]:
    lines = [f"## {title}", "", f"| | {' | '.join(TITLES)} |", "|---" * (len(TITLES) + 1) + "|"]
    for name, calls in sorted(entries.items()):
        lines.append(f"| `{name}` | {' | '.join(entry(calls, kind) for kind in rights_calls.COLUMNS)} |")
    return [*lines, ""]


def page() -> str:
    """The text of the page."""
    lines = [HEAD, *table("Functions", rights_calls.functions()), *table("Views", rights_calls.views())]
    return "\n".join(lines).rstrip("\n") + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
