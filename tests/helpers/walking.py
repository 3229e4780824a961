"""Follows a page of the documentation: block by block, each as its caption says. captions.py has what they mean.

`python tests/helpers/walking.py NAME...` follows some pages, for example `tutorial` and `jobs`, on a new server.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path

from captions import NOT_RUN, PAGES, Block, blocks, unused
from reading import Reader

#: Pages that need a server of another kind, and the variables that name it.
REDIS = {
    "from-celery": ("CELERY_BROKER_URL", "CELERY_RESULT_BACKEND"),
    "from-rq": ("REDIS_URL", "RQ_REDIS_URL"),
}


#: Ports of the pages, in whose place a walk uses free ones: it runs beside other walks.
PORTS = ("5017", "8017", "11300")


@dataclass
class Walk:
    """Where a reader is on a page."""

    page: Path
    reader: Reader
    settings: dict[str, str] = field(default_factory=dict)
    printed: str = ""
    ports: dict[str, str] = field(default_factory=lambda: {name: free_port() for name in PORTS})

    def follow(self) -> None:
        """From the top of the page to its end, with these variables in the environment."""
        with self.reader.on(self.page.stem, self.settings):
            for block in blocks(self.page):
                self.try_step(block)
            for block in unused(blocks(self.page)):
                self.reader.run_python(block.caption)

    def try_step(self, block: Block) -> None:
        """Raises with the name of the block."""
        try:
            self.step(block)
        except BaseException as error:
            error.add_note(f"in {self.page.name}, {block}")
            raise

    def step(self, block: Block) -> None:
        block = replace(block, text=re.sub("|".join(PORTS), lambda found: self.ports[found[0]], block.text))
        if block.file:
            self._save(block)
        elif block.caption in NOT_RUN:
            return
        elif block.output:
            self._compare(block)
        elif block.shell:
            self.reader.leave_running(block.shell, block.text)
        elif block.language == "sh":
            self.printed = self.reader.type(block.text)
        elif block.language == "python":
            self.reader.save("example.py", block.text)
            self.printed = self.reader.run_python("example.py")
        elif block.language == "sql":
            self.printed = self.reader.psql(block.text)

    def _save(self, block: Block) -> None:
        path = self.reader.save(block.caption, block.text)
        if path.suffix == ".service":
            verify_unit(path)

    def _compare(self, block: Block) -> None:
        """The widths of columns do not count."""
        expected = [re.escape(plain(line)).replace("…", ".*").replace(r"\ ", " ") for line in block.text.splitlines()]
        if block.shell:
            for pattern in expected:
                self.reader.expect(block.shell, pattern)
            return
        lines = [plain(line) for line in self.printed.splitlines()]
        assert len(lines) == len(expected), self.printed
        for pattern, line in zip(expected, lines, strict=True):
            assert re.fullmatch(pattern, line), f"{line!r} is not {pattern!r}"


def free_port() -> str:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return str(free.getsockname()[1])


def plain(line: str) -> str:
    return re.sub(r"\s+", " ", line.rstrip())


def verify_unit(path: Path) -> None:
    """By systemd where it is installed. The unit's program is not on this machine, so another one stands for it."""
    if (systemd := shutil.which("systemd-analyze")) is None:
        return
    unit = path.with_stem(f"verified-{path.stem}")
    unit.write_text(re.sub(r"^(Exec\w+=)/\S+", rf"\1{sys.executable}", path.read_text(), flags=re.MULTILINE))
    done = subprocess.run([systemd, "verify", unit], capture_output=True, text=True, timeout=60)
    os.unlink(unit)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def main(names: list[str]) -> None:
    with tempfile.TemporaryDirectory() as place:
        os.chmod(place, 0o755)  # for the account of the embedded server
        with closing(Reader(Path(place))) as reader:
            for page in (page for page in PAGES if page.stem in names):
                Walk(page, reader, {name: os.environ[name] for name in REDIS.get(page.stem, ())}).follow()
                print(page.stem)


if __name__ == "__main__":
    main(sys.argv[1:])
