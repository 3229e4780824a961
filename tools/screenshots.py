"""Pictures of the dashboard's pages, for its guide and for a look at each page.

    python tools/screenshots.py DSN docs/pictures/dashboard          # those of the guide
    python tools/screenshots.py DSN FOLDER --all                     # each page, two widths, two colour schemes

It fills the database with shop.py, so give it an empty one. Needs playwright, Pillow (which matplotlib brings) and
Chromium: `apt-get install chromium`. The guide has each page of the menu and of OTHERS in the light scheme, and those
of DARK in both, with at most COLOURS colours: a file is a third as large then.
"""

from __future__ import annotations

import argparse
import io
import linecache
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from PIL import Image
from playwright.sync_api import sync_playwright

from pgqueue.dashboard.pages import MENU

WIDTHS = {"desktop": (1280, 860), "phone": (390, 844)}
COLOURS = 256
HIGHEST = 1400  # pixels of a picture of the guide
LISTS = ("tasks", "server")  # long tables of the same: their pictures end with the window
DARK = ("overview", "queue")  # also in the dark scheme
#: Pages that need an argument, and pages of the menu with one that shows more.
OTHERS = {
    "queue": "queue?name=images",
    "tasks": "tasks?queue=images&state=buried",
    "job": "job?queue=images&job=shop.resize",
    "schedule": "schedule?name=nightly+report",
}
#: For a look only.
MORE = {
    "queue-paused": "queue?name=newsletter",
    "queue-lane": "queue?name=orders",
    "tasks-newest": "tasks",
    "gone": "task?id=999999999",
}


def load_shop() -> ModuleType:
    """shop.py, as if it were in a folder of its own: its path is in the tracebacks of the pictures."""
    path, shown = Path(__file__).with_name("shop.py"), "/srv/shop/shop.py"
    source = path.read_text("utf-8")
    linecache.cache[shown] = (len(source), None, source.splitlines(keepends=True), shown)
    made = ModuleType("shop")
    exec(compile(source, shown, "exec"), made.__dict__)
    return made


def guide() -> dict[str, str]:
    """The pictures of the guide but those of tasks, by their names: the addresses."""
    return {page.path or "overview": page.path for page in MENU} | OTHERS


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
    sys.argv[0] = "worker.py"  # the name of the program, which clients show
    shop = load_shop()
    with shop.open_shop(given.dsn) as client, dashboard(given.dsn) as address, sync_playwright() as playwright:
        sell(shop, client, given.seconds)
        chromium = browser(playwright)
        pages = guide() | of_tasks(client) | (MORE if given.all else {})
        for width in WIDTHS if given.all else ("desktop",):
            for scheme in ("light", "dark"):
                across, down = WIDTHS[width]
                context = chromium.new_context(viewport={"width": across, "height": down}, color_scheme=scheme)
                page = context.new_page()
                for name, path in pages.items():
                    if scheme == "dark" and not given.all and name not in DARK:
                        continue
                    page.goto(address + path)
                    page.wait_for_timeout(300)
                    end = page.evaluate("document.getElementById('foot').getBoundingClientRect().bottom")
                    file = "-".join((name, width, scheme) if given.all else (name, scheme))
                    picture = page.screenshot(full_page=True)
                    most = end if given.all else down if name in LISTS else HIGHEST
                    save(given.folder / f"{file}.png", picture, int(min(end, most)))
                context.close()
        chromium.close()


def save(path: Path, picture: bytes, height: int) -> None:
    """Write a picture with few colours, cut at a height in pixels."""
    with Image.open(io.BytesIO(picture)) as whole:
        cut = whole.convert("RGB").crop((0, 0, whole.width, min(whole.height, height)))
    few = cut.quantize(COLOURS, method=Image.Quantize.MAXCOVERAGE, kmeans=1, dither=Image.Dither.NONE)
    few.save(path, optimize=True)


def sell(shop: ModuleType, client: Any, seconds: float) -> None:
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
    found = {"task": failed, "task-running": running, "task-flow": waiting}
    return {name: f"task?id={tasks[0].id}" for name, tasks in found.items() if tasks}


if __name__ == "__main__":
    main()
