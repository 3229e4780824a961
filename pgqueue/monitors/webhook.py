"""Alerts to a web server: one POST of JSON for each.

The standard library sends it. requests and httpx would bring six packages each into the monitoring process for one call
without cookies, redirects or a pool.
"""

from __future__ import annotations

import base64
import http.client
import re
import urllib.error
import urllib.request
from collections.abc import Sequence
from typing import Any
from urllib.parse import unquote, urlsplit

from .._values import data, printable
from .targets import Target
from .thresholds import Alert

TIMEOUT = 5.0  # seconds of silence that end an attempt


class Post:
    """A URL to POST to. A user and a password in it, as in https://user:password@host/, are sent as Basic credentials.

    Args:
        url: of http or https.
        what: the name of the argument, for the error.
        path: is added to the URL's.

    Attributes:
        host: the part of the URL that a log may show: the rest is often a secret.

    Raises ValueError if it is not a URL of http or https.
    """

    def __init__(self, url: str, what: str, path: str = "") -> None:
        if not isinstance(url, str):
            raise ValueError(f"{what} is a URL of http or https, not {url!r}")
        if not re.fullmatch(r"https?://[!-~]+", url) or not (host := _host(url)):
            given = repr(_start(url)) if "://" in url else "a text without https:// at its beginning"
            raise ValueError(f"{what} is a URL of http or https, not {given}")
        self.host = host
        url, self._headers = _without_credentials(url)
        self._url = url.rstrip("/") + path if path else url
        self._opener = urllib.request.build_opener(_NoRedirect)

    def __call__(self, what: object) -> None:
        """POST it as JSON. Raises OSError unless the answer has a status of 2xx."""
        headers = {"Content-Type": "application/json", "User-Agent": "pgqueue", **self._headers}
        body = printable.json_text(data.encode(what)).encode()
        request = urllib.request.Request(self._url, body, headers, method="POST")
        try:
            self._opener.open(request, timeout=TIMEOUT).close()
        except urllib.error.HTTPError as error:
            error.close()
            raise
        except http.client.HTTPException as error:
            raise OSError(f"no answer of HTTP: {error!r}") from error


class Webhook(Target):
    """One POST for each alert, with its attributes."""

    def __init__(self, url: str) -> None:
        self._post = Post(url, "a webhook")
        self.name = f"the webhook at {self._post.host}"

    def send(self, alerts: Sequence[Alert]) -> None:
        for alert in alerts:
            self._post(alert.as_dict())


class Slack(Target):
    """One POST with the texts, as the incoming webhooks of Slack and of Mattermost take it."""

    most = 20

    def __init__(self, url: str) -> None:
        self._post = Post(url, "Slack's webhook")
        self.name = f"Slack's webhook at {self._post.host}"

    def send(self, alerts: Sequence[Alert]) -> None:
        # A queue's name may be `<!channel>` or `*loud*`: these three escapes, and no other, are Slack's.
        text = "\n".join(alert.text for alert in alerts)
        escaped = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
        self._post({"text": escaped, "mrkdwn": False})


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Fail at a redirect: urllib would follow it with a GET, without the alert."""

    def redirect_request(self, *args: Any) -> None:
        return None


def _without_credentials(url: str) -> tuple[str, dict[str, str]]:
    """The URL, and the header for its user and password: http.client would take them for a part of the host's name."""
    parts = urlsplit(url)
    credentials, _, place = parts.netloc.rpartition("@")
    if not credentials:
        return url, {}
    words = base64.b64encode(unquote(credentials).encode()).decode()
    return parts._replace(netloc=place).geturl(), {"Authorization": f"Basic {words}"}


def _start(url: str) -> str:
    """Scheme and host of a URL that is refused, as far as it has them: the rest may be a secret."""
    try:
        parts = urlsplit(url)
        return f"{parts.scheme}://{parts.hostname}" if parts.hostname and not parts.port else ""
    except ValueError:
        return ""


def _host(url: str) -> str | None:
    try:
        parts = urlsplit(url)
        return parts.hostname and f"{parts.scheme}://{parts.hostname}:{parts.port or parts.scheme}"
    except ValueError:  # no port, or no IPv6 address
        return None
