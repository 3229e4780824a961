"""The pictures of the guide: each page has one, they are small, and the tool that makes them makes these."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from checkout import CHECKOUT
from commands import environment

from pgqueue.dashboard.pages import MENU, PAGES

pytestmark = pytest.mark.once

FOLDER = CHECKOUT / "docs" / "pictures" / "dashboard"
GUIDE = CHECKOUT / "docs" / "guides" / "dashboard.md"
PNG = b"\x89PNG\r\n\x1a\n"
LARGEST, MOST = 150_000, 2_000_000  # bytes of a picture, and of all
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


def names(folder: Path) -> set[str]:
    return {file.name for file in folder.iterdir()}


def test_each_page_has_its_picture_in_the_guide() -> None:
    shown = re.findall(r"!\[[^\]]+\]\(\.\./pictures/dashboard/([^)]+)\)", GUIDE.read_text("utf-8"))
    assert sorted(shown) == sorted(names(FOLDER))
    assert {f"{page.path or 'overview'}-light.png" for page in PAGES} <= set(shown)


def test_the_pictures_are_small() -> None:
    pictures = {file.name: file.read_bytes() for file in FOLDER.iterdir()}
    assert all(content.startswith(PNG) for content in pictures.values())
    assert {name: len(content) for name, content in pictures.items() if len(content) > LARGEST} == {}
    assert sum(map(len, pictures.values())) <= MOST


@pytest.mark.parametrize("page", ["README.md", "docs/index.md"])
def test_the_first_screen_shows_the_overview(page: str) -> None:
    lines = (CHECKOUT / page).read_text("utf-8").splitlines()
    (link,) = [line for line in lines[:30] if line.startswith("![")]
    target = link.rpartition("](")[2].rstrip(")")
    assert ((CHECKOUT / page).parent / target).resolve() == FOLDER / "overview-light.png"


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium: apt-get install chromium")
def test_the_tool_makes_the_pictures_of_the_guide(dsn: str, tmp_path: Path) -> None:
    pytest.importorskip("PIL")
    command = [sys.executable, str(CHECKOUT / "tools" / "screenshots.py"), dsn, str(tmp_path), "--seconds", "5"]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr
    assert names(tmp_path) == names(FOLDER)
    assert {page.path or "overview" for page in MENU} <= {name.removesuffix("-light.png") for name in names(tmp_path)}
