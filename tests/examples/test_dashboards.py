"""The dashboard in FastAPI, Starlette, Flask and Django, each as a process of its own and driven over HTTP."""

from __future__ import annotations

import http.cookiejar
import re
import urllib.error
import urllib.parse
import urllib.request

import pytest
from sampling import sampled
from sites import CHECKOUT, free_port, serving

pytestmark = pytest.mark.once


class Browser:
    """Keeps cookies, and follows redirects."""

    def __init__(self, address: str) -> None:
        self.address = address
        jar = urllib.request.HTTPCookieProcessor(http.cookiejar.CookieJar())
        self.opener = urllib.request.build_opener(jar)
        self.headers: dict[str, str] = {}

    def open(self, path: str, form: dict[str, str] | None = None) -> tuple[int, str]:
        data = None if form is None else urllib.parse.urlencode(form).encode()
        headers = {"Origin": self.address, **self.headers}
        request = urllib.request.Request(f"{self.address}{path}", data, headers)
        try:
            with self.opener.open(request, timeout=30) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", sampled(["fastapi_app", "starlette_app", "flask_app", "django_asgi", "django_wsgi"], keep=1)
)
def test_an_application_mounts_the_dashboard_behind_its_log_in(name, dsn, blocking):
    queue = blocking().create_queue("a queue")
    port = free_port()
    settings = {"PGQUEUE_DSN": dsn, "PYTHONPATH": str(CHECKOUT / "tests" / "helpers")}
    with serving(["programs.dashboards", name, str(port)], port, settings=settings):
        browser = Browser(f"http://127.0.0.1:{port}")
        status, page = browser.open("/queues/" if name == "django_asgi" else "/queues")  # which leads to the former
        assert status == 200
        assert "a queue" in page
        for path in re.findall(r'(?:href|src)="((?!#)[^"]+)"', page):
            assert browser.open(urllib.parse.urljoin("/queues/", path.replace("&amp;", "&")))[0] == 200, path
        assert 'method="post"' not in browser.open("/queues/queue?name=a+queue")[1]
        if name in ("fastapi_app", "starlette_app"):
            browser.headers["X-User"] = "ada"
        else:
            assert browser.open("/log-in/ada", {} if name == "flask_app" else None) == (200, "ada")
        page = browser.open("/queues/queue?name=a+queue")[1]
        action = re.search(r'action="(act\?[^"]*do=drain)"', page)
        token = re.search(r'name="token" value="([^"]+)"', page)
        assert action
        assert token
        form = {"token": token[1]}
        status, page = browser.open(f"/queues/{action[1].replace('&amp;', '&')}", form)
        assert (status, "refuses puts from now on" in page) == (200, True), page
        assert queue.info().draining
        browser.headers["Origin"] = "https://evil.example"
        assert browser.open("/queues/act?do=undrain&queue=a+queue", form)[0] == 403
