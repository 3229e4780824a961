"""Each page in Debian's Chromium: nothing in the console, no other host, no width beyond the window; and live."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from importlib import resources
from typing import Any
from urllib.parse import urlencode

import psycopg
import pytest
from commands import started
from statements import value

import pgqueue
from pgqueue import Put
from pgqueue.dashboard.pages import MENU

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = [
    pytest.mark.once,
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium: apt-get install chromium"),
]

DESKTOP, PHONE = (1280, 800), (390, 844)
LONGEST = 150_000  # bytes of a page, with its style and script
VIOLATED = "addEventListener('securitypolicyviolation', (e) => console.error(e.violatedDirective, e.blockedURI))"
AXE = """async (rules) => (await axe.run(rules ? {runOnly: rules} : {})).violations
    .map((one) => [one.id, one.help, one.nodes.map((node) => node.html)])"""
SIDES = ("width", "height")
OF_COLOURS = ["color-contrast", "link-in-text-block"]  # the only rules that see another scheme
HOSTILE = "<script>document.title = 'was run'</script><img src=x onerror=alert(1)>\u202e\x07"


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-dev-shm-usage"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def axe() -> str:
    """The script that looks for violations of accessibility in a page."""
    return (resources.files(pytest.importorskip("axe_playwright_python")) / "axe.min.js").read_text()


@pytest.fixture
def client(blocking: Callable[..., pgqueue.Client]) -> pgqueue.Client:
    """Something of everything, with names and texts that are markup."""
    client = blocking()
    for name in ("mail", HOSTILE):
        client.queue(name).put_many([{"to": HOSTILE}, {"to": "ada@example.org"}])
        client.queue(name).take(5).bury(error=HOSTILE)
    split = Put("flows", {"do": "split"})
    client.put_graph([split, Put("flows", {"do": "count"}, after=split)])
    client.schedules.set(HOSTILE, "0 3 * * *", "mail", {"do": HOSTILE}, tz="Europe/Berlin")
    client.limits.set("mail", concurrency=2)
    client.exchanges.declare(HOSTILE, "topic")
    client.exchanges.bind("mail", HOSTILE, "order.#")
    client.queue("mail").pause(600)
    client.queue("letters").put({"n": 0})
    return client


@pytest.fixture
def address(client: pgqueue.Client, dsn: str) -> Iterator[str]:
    """That of a dashboard of this database."""
    command = started("dashboard", "--port", "0", settings={"PGQUEUE_DSN": dsn}, stdout=subprocess.PIPE, text=True)
    with command as process:
        found = re.fullmatch(r"serving on (http://\S+/)\n", process.stdout.readline())
        assert found
        yield found[1]


class Seen:
    """What a page did in the browser."""

    def __init__(self, page: Any, address: str) -> None:
        self.page = page
        self.bytes = 0
        self.wrong: list[str] = []
        page.on("console", lambda said: said.type in ("error", "warning") and self.wrong.append(said.text))
        page.add_init_script(VIOLATED)
        page.on("pageerror", lambda error: self.wrong.append(str(error)))
        page.on("request", lambda one: one.url.startswith(address) or self.wrong.append(one.url))
        page.on("response", self._count)

    def _count(self, response: Any) -> None:
        if not response.url.endswith("/events") and "/events?" not in response.url:
            self.bytes += len(response.body())


def paths(client: pgqueue.Client) -> list[str]:
    buried = client.queue("mail").tasks("buried").tasks[0].id
    waiting = client.queue("flows").tasks("waiting").tasks[0].id
    of_tasks = [f"task?id={buried}", f"task?id={waiting}", "tasks?queue=mail&state=buried"]
    return [*(page.path for page in MENU), "queue?name=mail", "queue?name=flows", *of_tasks]


@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_each_page_is_well_and_has_no_violation_by_axe(chromium, axe, client, address, size):
    for path in [*paths(client), "schedule?" + urlencode({"name": HOSTILE}), "nowhere"]:
        with chromium.new_page(viewport=dict(zip(SIDES, size, strict=True)), color_scheme="light") as page:
            seen = Seen(page, address)
            status = page.goto(address + path, wait_until="load").status
            page.wait_for_timeout(50)
            assert (status, seen.wrong) == (200, []) or (status, path) == (404, "nowhere")
            assert page.title() != "was run", path
            assert page.evaluate("document.documentElement.scrollWidth") <= size[0], path
            assert seen.bytes < LONGEST, path
            page.evaluate(axe)
            assert page.evaluate(AXE) == [], path
            page.emulate_media(color_scheme="dark")
            assert page.evaluate(AXE, OF_COLOURS) == [], path


def test_in_a_narrow_window_rows_are_cards_and_columns_of_numbers_scroll(chromium, client, address):
    with chromium.new_page(viewport={"width": PHONE[0], "height": PHONE[1]}) as page:
        page.goto(address + "tasks?queue=mail&state=buried")
        row = page.locator("table.cards tbody tr").first
        cells = [cell.bounding_box() for cell in row.locator("> *").all() if cell.is_visible()]
        assert max(box["x"] + box["width"] for box in cells) <= PHONE[0]
        assert len({box["y"] for box in cells}) > 2
        page.goto(address)
        table = page.locator("#queues-table")
        assert table.evaluate("(one) => one.scrollWidth > one.clientWidth")
        table.evaluate("(one) => { one.scrollLeft = 200 }")
        assert table.locator("tbody th").first.bounding_box()["x"] < 30
        page.goto(address + "server")
        current = page.locator(".top [aria-current]").bounding_box()
        assert 0 <= current["x"] <= PHONE[0] - current["width"]


def test_the_element_with_the_keyboards_focus_is_outlined(chromium, client, address):
    with chromium.new_page() as page:
        page.goto(address)
        for _ in range(30):
            page.keyboard.press("Tab")
            style = "getComputedStyle(document.activeElement)"
            assert page.evaluate(f"{style}.outlineStyle + ' ' + {style}.outlineWidth") == "solid 3px"


def test_a_violation_by_axe_is_seen(chromium, axe, address):
    with chromium.new_page() as page:
        page.goto(address + "limits")
        page.evaluate("document.querySelector('label[for=find]').remove()")
        page.evaluate("document.getElementById('find').removeAttribute('placeholder')")
        page.evaluate(axe)
        assert "label" in [id for id, *_ in page.evaluate(AXE)]


def test_text_that_is_hard_to_read_in_the_dark_is_a_violation(chromium, axe, address):
    with chromium.new_page(color_scheme="light") as page:
        page.goto(address + "limits")
        page.evaluate(axe)
        page.evaluate("document.querySelector('h1').style.color = '#444'")
        assert page.evaluate(AXE, OF_COLOURS) == []
        page.emulate_media(color_scheme="dark")
        assert [id for id, *_ in page.evaluate(AXE, OF_COLOURS)] == ["color-contrast"]


def test_a_violation_of_the_policy_is_seen(chromium, address):
    with chromium.new_page() as page:
        seen = Seen(page, address)
        page.goto(address + "limits")
        with page.expect_console_message(lambda said: said.text.startswith("img-src data")):
            page.evaluate("document.body.insertAdjacentHTML('beforeend', '<p style=\"color: red\">red</p>')")
            page.evaluate("document.body.insertAdjacentHTML('beforeend', '<img src=data:image/png,x>')")
        assert any(said.startswith("img-src data") for said in seen.wrong), seen.wrong


@pytest.mark.parametrize("path", ["", "queue?name=letters"])
def test_a_page_shows_a_put_by_itself(chromium, client, address, path):
    with chromium.new_page() as page:
        page.goto(address + path)
        page.get_by_text("Live", exact=True).wait_for()
        client.queue("letters").put_many([{"n": n} for n in range(40)])  # one is there
        page.locator(".n-ready", has_text="41").first.wait_for(timeout=20_000)


def test_a_button_acts_and_the_page_says_what_it_did(chromium, address, db: psycopg.Connection):
    with chromium.new_page() as page:
        page.goto(address + "queue?name=mail")
        page.get_by_role("button", name="Resume").first.click()
        page.locator(".said").wait_for()
    assert value(db, "SELECT paused_until FROM pgqueue.queues WHERE name = 'mail'") is None


def test_a_page_goes_on_by_itself_after_its_connections_were_ended(chromium, address, db: psycopg.Connection):
    with chromium.new_page() as page:
        page.goto(address)
        page.get_by_text("Live", exact=True).wait_for()
        db.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        db.execute("SELECT count(*) FROM generate_series(1, 40) n, pgqueue.put('letters', to_jsonb(n))")
        page.locator(".n-ready", has_text="41").first.wait_for(timeout=20_000)
