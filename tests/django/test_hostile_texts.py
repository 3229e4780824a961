"""The admin's pages and messages with strings that a stranger has set, in every column."""

from __future__ import annotations

import re
from html import unescape
from html.parser import HTMLParser
from typing import Any
from urllib.parse import quote as percent_encoded

import pytest
from browsing import Browser
from django.contrib.admin.utils import quote
from django.utils.html import conditional_escape
from hostile import MARKUP, STRINGS, obeyed

from pgqueue._values import printable
from pgqueue.contrib.django.admin import showing

pytestmark = pytest.mark.once

RETURNED = re.compile(r'name="_selected_action" value=".*?" class|name="_selected_action" value=".*?">', re.DOTALL)
UNREADABLE = {"digits": "9" * 5000} | {f"{n} brackets": "[" * n + "]" * n for n in (300, 900, 3000)}

everything = pytest.mark.parametrize("text", STRINGS.values(), ids=STRINGS)


class Tags(HTMLParser):
    """The elements that a browser makes of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found = list[tuple[str, dict[str, str | None]]]()
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


@everything
def test_texts(text: str) -> None:
    for shown, tags in (
        (showing.pretty({text: text}), ["pre"]),
        (showing.block(text), ["pre"]),
        (showing.last_line(text, 1000), []),
        (showing.lines("<b>{}</b>: {}", [(text, text)]), ["b"]),
        (showing.link("/x", printable.line(text)), ["a"]),
    ):
        assert [tag for tag, _ in Tags(str(conditional_escape(shown))).found] == tags
        assert obeyed(str(shown)) == []


@pytest.mark.slow
@everything
def test_pages_and_messages(text: str, browser: Browser, blocking: Any, db: Any) -> None:
    queue = blocking().queue(text)
    ready = queue.put({text: text}, key=text, lane=text)
    queue.put(text, priority=-1)
    taken = queue.take(0)
    assert taken is not None
    buried = queue.put(text)
    db.execute("SELECT pgqueue.bury(%s, error => %s)", [buried.id, text])
    db.execute("UPDATE pgqueue.session SET label = %s", [text])
    blocking().schedules.set(text, None, text, {text: text}, every=60, key=text)
    db.execute("UPDATE pgqueue.schedule SET error = %s, declared = %s", [text, text[:60]])
    details = [f"task/{task.id}/change/" for task in (ready, taken, buried)]
    for path in (
        "queue/",
        "task/",
        "take/",
        "session/",
        "result/",
        "schedule/",
        "health/",
        f"queue/{percent_encoded(quote(text))}/change/",
        f"schedule/{percent_encoded(quote(text))}/change/",
        *details,
    ):
        found = Tags(browser.page(path)).found
        assert not [tag for tag, attributes in found if "onerror" in attributes or attributes.get("src") == "x"], path
        assert "alert(1)" not in [attributes.get("href") for _, attributes in found]
        assert browser.page(path).count("<script>alert") == 0
        assert obeyed(RETURNED.sub("", unescape(browser.page(path)))) == [], path
    told = [
        *browser.act("queue/", "kick_all", text),
        *browser.act("task/", "remove", taken.id, confirmed="yes"),
        *browser.act("queue/", "truncate", text, confirmed="yes"),
    ]
    assert len(told) >= 3
    assert obeyed("".join(told)) == []


@pytest.mark.slow
@pytest.mark.parametrize("text", UNREADABLE.values(), ids=UNREADABLE)
def test_pages_with_values_that_python_cannot_hold(text: str, browser: Browser, db: Any) -> None:
    db.execute("SELECT pgqueue.create_queue('q', metadata => %s, keep_done => '1 h')", [text])
    db.execute("SELECT pgqueue.put('q', %s)", [text])
    db.execute("SELECT pgqueue.finish(id, token, result => %s) FROM pgqueue.take('q')", [text])
    db.execute("SELECT pgqueue.put('q', %s)", [text])
    db.execute("SELECT pgqueue.set_schedule('s', 'q', data => %s, every => '1 h')", [text])
    ids = [id for (id,) in db.execute("SELECT id FROM pgqueue.tasks")]
    for path in ("queue/", "task/", "result/", "schedule/", *(f"task/{id}/change/" for id in ids)):
        browser.page(path)
    for path in ("queue/q/change/", "schedule/s/change/", f"result/{min(ids)}/change/"):
        assert "nested too deep" in browser.page(path) or text[:5] in re.sub(r"\s", "", browser.page(path))


def test_the_markup_is_markup_where_it_is_not_escaped() -> None:
    assert [tag for tag, _ in Tags(MARKUP).found] == ["script", "img"]
