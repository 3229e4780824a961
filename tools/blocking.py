"""Write pgqueue/_sync from pgqueue/_async. Run it after every edit of _async; `--check [PACKAGE]` compares instead.

The tokens of a module are renamed, and `async` and `await` dropped. Strings keep their text, since docstrings are the
same in both shells. A comment line that begins with `# sync: ` is code that only the blocking shell has. Everything
that differs by more than names is in _engine/awaiting.py and _engine/blocking.py, under the same names.
"""

from __future__ import annotations

import io
import re
import subprocess
import sys
import tokenize
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "pgqueue"
HEAD = "# Generated from pgqueue/_async/{name} by tools/blocking.py: edit that file, not this one.\n\n"
SPELLED = {
    "AsyncIterator": "Iterator",
    "StopAsyncIteration": "StopIteration",
    "__aenter__": "__enter__",
    "__aexit__": "__exit__",
    "__aiter__": "__iter__",
    "__anext__": "__next__",
    "awaiting": "blocking",
}
ASYNC = re.compile(r"\b(_?)Async([A-Z])")
ONLY_SYNC = re.compile(r"^( *)# sync: ?", re.MULTILINE)


def renamed(name: str) -> str:
    return SPELLED.get(name) or ASYNC.sub(r"\1\2", name)


def blocking(source: str) -> str:
    """The blocking twin of a module, not yet formatted."""
    verbatim = {number for number, line in enumerate(source.splitlines(), 1) if ONLY_SYNC.match(line)}
    lines = ONLY_SYNC.sub(r"\1", source).splitlines(keepends=True)
    edits: list[tuple[int, int, int, str]] = []  # line, from, to, text
    for token in tokenize.generate_tokens(io.StringIO("".join(lines)).readline):
        (line, start), (_, end) = token.start, token.end
        if token.type != tokenize.NAME or line in verbatim:
            continue
        if token.string in ("async", "await"):
            edits.append((line, start, end + 1, ""))  # with the space behind it
        elif (name := renamed(token.string)) != token.string:
            edits.append((line, start, end, name))
    for line, start, end, text in reversed(edits):
        lines[line - 1] = lines[line - 1][:start] + text + lines[line - 1][end:]
    return "".join(lines)


def tidy(source: str) -> str:
    """As ruff formats it: the lines are shorter than in _async, and the imports in another order."""
    for command in (["check", "--fix-only", "--select=I,UP034"], ["format"]):
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "ruff",
                *command,
                "--quiet",
                f"--stdin-filename={PACKAGE / '_sync' / 'module.py'}",
                "-",
            ],
            input=source,
            capture_output=True,
            text=True,
            check=True,
        )
        source = done.stdout
    return source


def main(package: Path, check: bool) -> int:
    """Write or compare every module; with `check`, 1 if one differs."""
    made = {
        path.name: tidy(HEAD.format(name=path.name) + blocking(path.read_text("utf-8")))
        for path in sorted((package / "_async").glob("*.py"))
    }
    there = {path.name: path.read_text("utf-8") for path in (package / "_sync").glob("*.py")}
    stale = sorted(name for name in made.keys() | there.keys() if made.get(name) != there.get(name))
    if check:
        for name in stale:
            print(f"_sync/{name} is not what tools/blocking.py makes of _async: run it")
        return int(bool(stale))
    (package / "_sync").mkdir(exist_ok=True)
    for name in stale:
        path = package / "_sync" / name
        path.write_text(made[name], "utf-8") if name in made else path.unlink()
    return 0


if __name__ == "__main__":
    given = sys.argv[1:]
    places = [Path(one) for one in given if one != "--check"]
    sys.exit(main(places[0] if places else PACKAGE, "--check" in given))
