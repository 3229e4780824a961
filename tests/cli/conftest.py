"""Commands at terminals."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from terminals import Terminal


@pytest.fixture
def terminal(dsn: str) -> Iterator[Callable[..., Terminal]]:
    made: list[Terminal] = []

    def make(*arguments: str, **settings: str) -> Terminal:
        made.append(Terminal("--dsn", dsn, *arguments, **settings))
        return made[-1]

    yield make
    for one in made:
        one.close()
