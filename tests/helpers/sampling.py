"""Of a long table of cases the default run has some, spread over the table. The others are slow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest


def sampled(cases: Sequence[Any], keep: int) -> list[Any]:
    """The cases for pytest.mark.parametrize: `keep` of them run by default."""
    quick = {len(cases) * n // keep for n in range(keep)}
    marks = [() if place in quick else (pytest.mark.slow,) for place in range(len(cases))]
    return [
        pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=mark)
        for case, mark in zip(cases, marks, strict=True)
    ]
