"""Pictures of the dashboard's pages, for its guide and for a look at each page.

    python tools/screenshots.py DSN docs/pictures/dashboard          # those of the guide
    python tools/screenshots.py DSN FOLDER --all                     # each page, two widths, two colour schemes

It fills the database with shop.py, so give it an empty one. Needs playwright and Chromium: `apt-get install chromium`.
"""

from __future__ import annotations

import argparse
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import shop
from playwright.sync_api import sync_playwright

WIDTHS = {"desktop": (1280, 800), "phone": (390, 844)}
GUIDE = {"overview": "", "queue": "queue?name=images", "failures": "failures", "workers": "workers"}
PAGES = {
    **GUIDE,
    "queue-paused": "queue?name=newsletter",
    "queue-lane": "queue?name=orders",
    "tasks": "tasks?queue=images&state=buried",
    "tasks-newest": "tasks",
    "jobs": "jobs",
    "job": "job?queue=images&job=shop.resize",
    "schedules": "schedules",
    "schedule": "schedule?name=nightly+report",
    "limits": "limits",
    "batches": "batches",
    "coordination": "coordination",
    "routing": "routing",
    "server": "server",
    "gone": "task?id=999999999",
}


def browser(playwright: Any) -> Any:
    """Debian's Chromium."""
    path = shutil.which("chromium") or shutil.which("chromium-browser")
    if path is None:
        sys.exit("there is no Chromium here: apt-get install chromium")
    return playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])


@contextmanager
def dashboard(dsn: str) -> Iterator[str]:
    """The address of a dashboard of this database."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "pgqueue", "--dsn", dsn, "dashboard", "--port", str(port), "--title", "Shop"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()  # the address: it listens
            yield f"http://127.0.0.1:{port}/"
        finally:
            process.terminate()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dsn")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--seconds", type=float, default=75.0, help="for how long the shop sells first; rates need 60")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    with shop.open_shop(given.dsn) as client, dashboard(given.dsn) as address, sync_playwright() as playwright:
        sell(client, given.seconds)
        chromium = browser(playwright)
        pages = PAGES | of_tasks(client) if given.all else GUIDE
        for width, (across, down) in (WIDTHS if given.all else {"": WIDTHS["desktop"]}).items():
            for scheme in ("light", "dark"):
                context = chromium.new_context(viewport={"width": across, "height": down}, color_scheme=scheme)
                page = context.new_page()
                for name, path in pages.items():
                    page.goto(address + path)
                    page.wait_for_timeout(300)
                    file = "-".join(part for part in (name, width, scheme) if part)
                    page.screenshot(path=given.folder / f"{file}.png", full_page=given.all)
                context.close()
        chromium.close()


def sell(client: Any, seconds: float) -> None:
    until, order = time.monotonic() + seconds, 0
    while time.monotonic() < until:
        shop.sell(client, range(order + 1, order + 6))
        order += 5
        time.sleep(0.2)


def of_tasks(client: Any) -> dict[str, str]:
    """The pages of a failed task, of one with progress, and of one in a flow."""
    failed = client.queue("images").tasks("buried", limit=1).tasks
    running = client.queue("exports").tasks("taken", limit=1).tasks
    waiting = client.queue("reports").tasks("waiting", limit=1).tasks
    found = {"task-failed": failed, "task-running": running, "task-flow": waiting}
    return {name: f"task?id={tasks[0].id}" for name, tasks in found.items() if tasks}


if __name__ == "__main__":
    main()
