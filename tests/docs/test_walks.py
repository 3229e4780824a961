"""The pages that a reader follows from top to bottom are followed so: every command, file and output."""

from __future__ import annotations

from pathlib import Path

import pytest
from walking import PAGES, blocks, walk

#: Where the other queues of these guides find their server.
OTHERS = {
    "from-celery": ("CELERY_BROKER_URL", "CELERY_RESULT_BACKEND"),
    "from-rq": ("REDIS_URL", "RQ_REDIS_URL"),
    "from-procrastinate": ("DATABASE_URL",),
}
REDIS = {"from-celery", "from-rq"}


@pytest.mark.once
@pytest.mark.slow
@pytest.mark.timeout(300)  # a page starts dozens of processes, one after the other
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_holds_what_it_shows(page: Path, dsn: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    names = OTHERS.get(page.stem, ())
    url = request.getfixturevalue("redis_url") if page.stem in REDIS else dsn
    walk(page, tmp_path, dsn, dict.fromkeys(names, url))


@pytest.mark.once
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_block_says_what_it_is(page: Path) -> None:
    """A fence without a language would not be run, and nobody would notice."""
    fences = [line for line in page.read_text("utf-8").splitlines() if line.startswith("```")]
    assert len(fences) == 2 * len(blocks(page)) + 2 * sum(line.startswith("```{") for line in fences)
