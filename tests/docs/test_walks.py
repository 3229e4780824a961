"""The documentation is followed as a reader would, by copy and paste: every page, in the order of the site."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import brokers
import psycopg
import pytest
from captions import PAGES, QUICKSTART, README, blocks
from reading import Reader
from walking import REDIS, Walk

pytestmark = pytest.mark.once


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder with a short path, for sockets, which the account of an embedded server can reach if root runs this."""
    path = Path(tempfile.mkdtemp(prefix="pgqueue-docs-"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.mark.slow
@pytest.mark.timeout(7200)  # about 300 blocks one after the other; a loaded machine took 23 minutes
def test_the_pages_work_one_after_another_on_one_server(place: Path) -> None:
    """No page finds what another one has left, and none needs a variable that it does not set, but a Redis's name."""
    pages = [page for page in PAGES if page.stem not in REDIS or shutil.which("redis-server")]
    assert len([page for page in pages if blocks(page)]) > 40
    with closing(Reader(place)) as reader:
        for page in pages:
            if not blocks(page):
                continue
            before = left(reader)
            if page.stem in REDIS:
                with brokers.redis(place) as url:
                    Walk(page, reader, dict.fromkeys(REDIS[page.stem], url)).follow()
            else:
                Walk(page, reader).follow()
            assert touched(before, left(reader)) == [], f"{page.name} uses queues of pages before it"


def left(reader: Reader) -> dict[str, set[int]]:
    """The ids of the tasks in each queue. No process of a page runs any more."""
    found: dict[str, set[int]] = {}
    with psycopg.connect(reader.dsn()) as connection:
        if connection.execute("SELECT to_regclass('pgqueue.tasks')").fetchone() != (None,):
            for queue, id in connection.execute("SELECT queue, id FROM pgqueue.tasks"):
                found.setdefault(queue, set()).add(id)
    return found


def touched(before: dict[str, set[int]], after: dict[str, set[int]]) -> list[str]:
    """The queues in which tasks of earlier pages lay, and into which a page has put, or from which it has removed."""
    return [queue for queue, tasks in before.items() if after.get(queue) != tasks]


@pytest.mark.slow
def test_the_first_blocks_of_python_work(dsn: str, place: Path) -> None:
    """A quick part of the walk above: those of the README and of the quick start, on the server of this run."""
    kinds = ("Python", "Output")
    ran = 0
    with closing(Reader(place, dsn)) as reader:
        for page in (README, QUICKSTART):
            walk = Walk(page, reader)
            with reader.on(page.stem):
                for block in blocks(page):
                    if block.caption in kinds:
                        walk.try_step(block)
                        ran += block.caption == "Python"
    assert ran > 7


def test_an_output_that_differs_fails(place: Path) -> None:
    """A control of the comparison that the walks trust."""
    page = place / "page.md"
    page.write_text("**Shell**\n```sh\necho 'two  words and 7'\n```\n\n**Output**\n```text\ntwo words and …\n```\n")
    with closing(Reader(place, "none")) as reader:
        Walk(page, reader).follow()
        page.write_text(re.sub("two words", "three words", page.read_text()))
        with pytest.raises(AssertionError, match="is not 'three words"):
            Walk(page, reader).follow()
