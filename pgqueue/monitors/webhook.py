"""Alerts to a web server: one POST of JSON, with a few attempts.

The standard library sends it. requests and httpx would bring six packages each into the monitoring process for one call
without cookies, redirects or a pool, and neither has the pauses that a stop of the monitor ends.
"""

from __future__ import annotations

import base64
import http.client
import logging
import re
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any
from urllib.parse import unquote, urlsplit

from .._values import data, printable

log = logging.getLogger("pgqueue")

PAUSES = (1.0, 3.0)  # seconds, between the attempts
TIMEOUT = 5.0  # seconds for an attempt


class Webhook:
    """A URL to POST to. A user and a password in it, as in https://user:password@host/, are sent as Basic credentials.

    Raises ValueError if it is not a URL of http or https.
    """

    def __init__(self, url: str) -> None:
        if not isinstance(url, str):
            raise ValueError(f"a webhook is a URL of http or https, not {url!r}")
        if not re.fullmatch(r"https?://[!-~]+", url) or not _host(url):
            raise ValueError(f"a webhook is a URL of http or https, not {_start(url)!r}")
        self._host = _host(url)
        self._url, self._headers = _without_credentials(url)
        self._opener = urllib.request.build_opener(_NoRedirect)

    def post(self, what: dict[str, Any], pause: Callable[[float], bool]) -> bool:
        """POST. Returns whether the server accepted it, by a status of 2xx. `pause` sleeps; True means give up."""
        body = printable.json_text(data.encode(what)).encode()
        for seconds in (*PAUSES, None):
            try:
                self._post(body)
            except (OSError, http.client.HTTPException) as error:
                why = error
            else:
                return True
            if seconds is None or pause(seconds):
                break
        log.error("the webhook at %s did not accept %s: %s", self._host, body.decode(), why)
        return False

    def _post(self, body: bytes) -> None:
        headers = {"Content-Type": "application/json", "User-Agent": "pgqueue", **self._headers}
        request = urllib.request.Request(self._url, body, headers, method="POST")
        try:
            self._opener.open(request, timeout=TIMEOUT).close()
        except urllib.error.HTTPError as error:
            error.close()
            raise


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
    """The part of a URL that a log may show: the rest is often a secret."""
    try:
        parts = urlsplit(url)
        return parts.hostname and f"{parts.scheme}://{parts.hostname}:{parts.port or parts.scheme}"
    except ValueError:  # no port, or no IPv6 address
        return None
