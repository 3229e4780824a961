"""The documentation's blocks and the captions above them; docs/quickstart.md explains these to readers.

**`app.py`**                    the block is this file. A program that no block names is run at the end of the page
**Shell**                       it is typed into the first shell, and has to succeed; what it exports holds for the
                                rest of the page
**Shell 2**                     it is typed into another shell, and goes on until the page ends, or the shell gets
                                another block. Then Ctrl-C has to end it, a command of pgqueue with 0
**Python**                      it is saved as example.py, and run by `python example.py` in the first shell
**psql**                        it is pasted into `psql "$(pgqueue server start)"`
**Output**                      what the block before printed; … is any text within a line
**Output of shell 2**           what that shell prints, sooner or later, among other lines
**Shell, in the checkout**      it installs packages, and is not run: they are here
**Shell, to adapt**             it has names that a reader replaces, and is not run. **psql, to adapt** likewise
"""

from __future__ import annotations

import configparser
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pages import DOCS

README = DOCS.parent / "README.md"
QUICKSTART = DOCS / "quickstart.md"

FENCE = re.compile(r"(?:^\*\*(`?)([^*\n]+?)\1\*\*\n)?^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
TREE = re.compile(r"^```{toctree}\n(.*?)^```$", re.MULTILINE | re.DOTALL)

#: Which captions a block may have by its language, if it is no file. A reader does not type the languages left out.
KINDS = {
    "sh": r"Shell( \d|, to adapt|, in the checkout)?",
    "python": r"Python",
    "sql": r"psql(, to adapt)?",
    "text": r"(Output( of shell \d)?)?",
    "postgresql": "",  # of the generated reference
    "json": "",
    "py": "",  # an excerpt
}
#: Captions of blocks that are not run.
NOT_RUN = {"Shell, to adapt", "Shell, in the checkout", "psql, to adapt", ""}


@dataclass(frozen=True)
class Block:
    """A fenced block with its caption: a file's name, or one of the words above, or empty."""

    language: str
    text: str
    caption: str
    file: bool
    line: int

    @property
    def shell(self) -> str:
        """The number of the other shell that it is typed into or printed by, or an empty text."""
        return self.caption[-1] if self.caption[-1:].isdigit() and not self.file else ""

    @property
    def output(self) -> bool:
        return self.caption.startswith("Output") and not self.file

    def __str__(self) -> str:
        return f"line {self.line}, {self.caption or self.language}: {self.text[:60]!r}"


def blocks(page: Path) -> list[Block]:
    """The blocks of a page, in their order."""
    text = page.read_text("utf-8")
    return [
        Block(found[3], found[4], found[2] or "", bool(found[1]), text.count("\n", 0, found.start()) + 1)
        for found in FENCE.finditer(text)
    ]


def kind(block: Block) -> bool:
    """Whether a block has a caption that fits it."""
    return block.file or re.fullmatch(KINDS.get(block.language, "a file"), block.caption) is not None


def unused(page: list[Block]) -> list[Block]:
    """The programs among a page's files that no block of it names. A walk runs these by themselves, at its end."""
    return [
        block
        for block in page
        if block.file and block.language == "python"
        if not any(name in other.text for other in page if _runs(other) for name in names(block))
    ]


def _runs(block: Block) -> bool:
    return block.file or block.caption not in NOT_RUN


def names(block: Block) -> tuple[str, ...]:
    """The words by which another block may name a file: for Alembic and Django the folder that it lies in."""
    path = Path(block.caption)
    return (path.stem, *(part.name for part in path.parents if part.name))


def site(page: Path = DOCS / "index.md") -> Iterator[Path]:
    """The pages in the order of the site's contents, from this one on."""
    yield page
    for tree in TREE.findall(page.read_text("utf-8")):
        for name in tree.split():
            if (below := page.parent / f"{name}.md").exists():
                yield from site(below)


#: What a reader follows: the README first, then the site.
PAGES = [README, *site()]


def check_form(block: Block) -> None:
    """Parse a block as its language. Raises if that fails."""
    if block.language == "sh":
        subprocess.run(["bash", "-n"], input=block.text, check=True, text=True)
    elif block.language == "python":
        compile(block.text, block.caption, "exec")
    elif block.language == "yaml":
        import yaml

        assert list(yaml.safe_load_all(block.text))
    elif block.language == "ini":
        text = block.text if "[" in block.text else f"[all]\n{block.text}"
        configparser.ConfigParser(interpolation=None).read_string(text)
