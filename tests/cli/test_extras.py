"""Commands without the packages of an extra: the error names the command that installs them."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest
from checkout import CHECKOUT
from commands import Commands

pytestmark = pytest.mark.once


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Have the import of a package fail as if it were not installed."""

    def hide(package: str) -> None:
        for name in [*sys.modules]:
            if name.startswith(("pgqueue.dashboard", "pgqueue.monitors.prometheus", f"{package}.")):
                monkeypatch.delitem(sys.modules, name)
        monkeypatch.setitem(sys.modules, package, None)

    return hide


@pytest.mark.parametrize(
    ("package", "extra", "line"),
    [
        ("starlette", "dashboard", ["dashboard", "--port", "0"]),
        ("jinja2", "dashboard", ["dashboard", "--port", "0"]),
        ("uvicorn", "dashboard", ["dashboard", "--hash-password"]),
        ("prometheus_client", "metrics", ["metrics", "--once"]),
        ("cronsim", "cron", ["schedule", "set", "nightly", "mail", "--cron", "0 3 * * *"]),
    ],
)
def test_a_missing_package_is_told_with_its_remedy(
    command: Commands, without: Callable[[str], None], package: str, extra: str, line: list[str]
) -> None:
    without(package)
    assert f"run `pip install '.[{extra}]'` in a checkout of pgqueue" in command.fails(1, *line)


def test_a_dashboard_under_wsgi_needs_its_own_package(without: Callable[[str], None]) -> None:
    without("a2wsgi")
    from pgqueue.dashboard import wsgi_dashboard

    with pytest.raises(ImportError, match=r"pip install '\.\[dashboard\]'"):
        wsgi_dashboard()


def test_no_text_would_install_the_other_distribution() -> None:
    """The index's `pgqueue` belongs to another project."""
    texts = [
        file for place in ("pgqueue", "docs") for kind in ("*.py", "*.md") for file in (CHECKOUT / place).rglob(kind)
    ]
    wrong = [str(file) for file in [*texts, CHECKOUT / "README.md"] if "pgqueue[" in file.read_text("utf-8")]
    assert wrong == []
