"""The guards of the dashboard in a browser: headers, the token of forms, the origin of requests, and a password.

- Content-Security-Policy: scripts, styles and connections of this address alone, none inline, and no frame. So markup
  that a page would fail to escape could still not run.
- A form carries the token of a cookie that other sites cannot read (the double-submit pattern: no state on the server,
  so several processes may serve one dashboard), and the browser's own header of a request's origin must name this
  address. Each of the two is enough.
- `Host`: the command, which listens on loopback, answers for names of loopback only. A site that points its own name at
  127.0.0.1 gets nothing.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import os
import secrets
from collections.abc import Sequence
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",  # for browsers without frame-ancestors
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
COOKIE = "pgqueue_form"
FIELD = "token"
COST = (2**14, 8, 1)  # scrypt's n, r, p: 16 MB and some 50 ms for each attempt
AT_ONCE = 4  # attempts to log in that are checked at a time
PAUSE = 1.0  # seconds before the answer to a wrong password


class Guarded:
    """An ASGI application whose answers have the headers above, for the hosts of a list; None: for each host."""

    def __init__(self, app: ASGIApp, hosts: Sequence[str] | None = None) -> None:
        self._app = app
        self._hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        if self._hosts is not None and host_of(Headers(scope=scope).get("host", "")) not in self._hosts:
            refusal = PlainTextResponse("this dashboard does not answer for that host\n", 421)
            await refusal(scope, receive, with_headers)
        else:
            await self._app(scope, receive, with_headers)


def host_of(header: str) -> str:
    """The host of a Host header, without its port."""
    return (urlsplit(f"//{header}").hostname or "") if header.isprintable() and "@" not in header else ""


def token_of(request: Request) -> str:
    """The token for the forms of this browser: that of its cookie, or a new one."""
    known = request.cookies.get(COOKIE, "")
    return known if 20 <= len(known) <= 100 and known.isascii() else secrets.token_urlsafe(24)


def set_token(request: Request, response: Response, token: str) -> None:
    """Give a browser that has none the cookie with its token."""
    if request.cookies.get(COOKIE) != token:
        path = f"{request.scope.get('root_path', '')}/"
        secure = request.url.scheme == "https"
        response.set_cookie(COOKIE, token, path=path, httponly=True, samesite="strict", secure=secure)


def refusal(request: Request, given: str) -> str | None:
    """Why a POST is refused; None: it is from a form of this dashboard."""
    site, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin")
    if site is not None and site != "same-origin":
        return "the request comes from another site"
    if site is None and (origin is None or urlsplit(origin).netloc != request.headers.get("host")):
        return "the request does not come from this address"
    known = request.cookies.get(COOKIE, "")
    if not known or not hmac.compare_digest(known.encode(), given.encode()):
        return "the form is not one that this dashboard gave to your browser: load the page again"
    return None


class Password:
    """An ASGI application behind HTTP Basic authentication with one password; any user name is accepted."""

    def __init__(self, app: ASGIApp, hashed: str, *, pause: float = PAUSE) -> None:
        self._app = app
        self._hashed = checked_hash(hashed)
        self._pause = pause
        self._known: bytes | None = None  # a digest of the password that was right, so that scrypt runs once
        self._salt = os.urandom(16)
        self._turns = asyncio.Semaphore(AT_ONCE)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or await self._is_right(password_of(Headers(scope=scope).get("authorization", ""))):
            await self._app(scope, receive, send)
            return
        answer = PlainTextResponse("this dashboard needs its password\n", 401)
        answer.headers["WWW-Authenticate"] = 'Basic realm="pgqueue", charset="UTF-8"'
        await answer(scope, receive, send)

    async def _is_right(self, password: str | None) -> bool:
        if password is None:
            return False
        digest = hashlib.blake2b(password.encode(), key=self._salt).digest()
        if self._known is not None and hmac.compare_digest(digest, self._known):
            return True
        async with self._turns:
            right = await asyncio.to_thread(is_password, password, self._hashed)
        if right:
            self._known = digest
        else:
            await asyncio.sleep(self._pause)
        return right


def password_of(header: str) -> str | None:
    """The password in an Authorization header of the scheme Basic; None if there is none."""
    found = credentials_of(header)
    return None if found is None else found[1]


def user_of(request: Request) -> str | None:
    """The name that the viewer typed beside the password. It is not checked, since any name is accepted."""
    found = credentials_of(request.headers.get("authorization", ""))
    return None if found is None else found[0]


def credentials_of(header: str) -> tuple[str, str] | None:
    """The user and the password of an Authorization header of the scheme Basic."""
    scheme, _, value = header.partition(" ")
    if scheme.lower() != "basic" or len(value) > 4000:
        return None
    try:
        user, _, password = base64.b64decode(value, validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError):
        return None
    return user, password


def hash_password(password: str) -> str:
    """A password as a text from which it cannot be read back. Raises ValueError for one of less than 8 characters."""
    if len(password) < 8:
        raise ValueError("a password has at least 8 characters")
    n, r, p = COST
    salt = os.urandom(16)
    return f"scrypt:{n}:{r}:{p}:{salt.hex()}:{_scrypt(password, salt, n, r, p).hex()}"


def is_password(password: str, hashed: str) -> bool:
    """Whether a hash is that of the password."""
    _, n, r, p, salt, key = hashed.split(":")
    made = _scrypt(password, bytes.fromhex(salt), int(n), int(r), int(p))
    return hmac.compare_digest(made, bytes.fromhex(key))


def checked_hash(hashed: str) -> str:
    """A text that hash_password() made. Raises ValueError."""
    parts = hashed.split(":")
    try:
        known = parts[0] == "scrypt" and tuple(map(int, parts[1:4])) == COST
        fits = known and len(bytes.fromhex(parts[4])) == 16 and len(bytes.fromhex(parts[5])) == 64 and len(parts) == 6
    except (ValueError, IndexError):
        fits = False
    if not fits:
        raise ValueError("this is no hash of a password: `pgqueue dashboard --hash-password` makes one")
    return hashed


def _scrypt(password: str, salt: bytes, n: int, r: int, p: int) -> bytes:
    return hashlib.scrypt(password.encode(), salt=salt, n=n, r=r, p=p, maxmem=64 * 1024 * 1024)
