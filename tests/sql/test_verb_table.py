"""Every verb on a task in every state, after every cause: docs/reference/verbs.md says what it does."""

from __future__ import annotations

import pytest
import verbs


@pytest.mark.slow
def test_the_page_of_verbs_says_what_the_verbs_do(dsn: str) -> None:
    """Run tools/verbs.py after a change, and read the difference."""
    assert verbs.page(dsn) == verbs.PAGE.read_text("utf-8")
