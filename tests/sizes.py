"""How much the fault tests do: a little by default, as much as one likes by option.

pytest tests/test_handoffs.py --handoffs=20000
pytest tests/test_kills.py --kills=50 --kill-tasks=100000
pytest tests/test_plans.py --backlog=1000000
"""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("pgqueue")
    group.addoption("--handoffs", type=int, default=2000, help="tasks handed over in test_handoffs")
    group.addoption("--kills", type=int, default=5, help="processes killed in test_kills")
    group.addoption("--kill-tasks", type=int, default=5000, help="tasks during these kills")
    group.addoption("--backlog", type=int, default=100_000, help="tasks that lie there in test_plans")


@pytest.fixture
def size(request: pytest.FixtureRequest) -> dict[str, int]:
    """The sizes by name, for `size["handoffs"]`."""
    return {name: request.config.getoption(name) for name in ("handoffs", "kills", "kill_tasks", "backlog")}
