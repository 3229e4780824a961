"""Alerts by e-mail: one message for those of a look, through an SMTP server."""

from __future__ import annotations

import re
import smtplib
import socket
import ssl
from collections.abc import Sequence
from email.message import EmailMessage
from email.utils import formatdate, make_msgid
from urllib.parse import SplitResult, unquote, urlsplit

from .._values import printable
from .reading import Outage
from .targets import Target
from .thresholds import Alert

TIMEOUT = 5.0  # seconds of silence that end an attempt
PORTS = {"smtp": 25, "smtps": 465}
SUBMISSION = 587  # the port for clients with a password
LONGEST = 120  # characters of a subject
HERE = ("localhost", "127.0.0.1", "::1")


class Mail(Target):
    """E-mail.

    Args:
        to: an address, or several.
        smtp: smtp://[user:password@]host[:port], encrypted by STARTTLS where the server offers it; or smtps:// for TLS
            from the start. A password is sent encrypted only, except to this machine.
        sender: the address in From. None: the user of `smtp` if that is an address, else pgqueue at this machine.

    Raises ValueError.
    """

    most = 100

    def __init__(self, to: str | Sequence[str], smtp: str, sender: str | None) -> None:
        self._to = [_address("mail", one) for one in ([to] if isinstance(to, str) else to)]
        if not self._to:
            raise ValueError("mail needs at least one address")
        server = _server(smtp)
        self._tls = server.scheme == "smtps"
        self._user, self._password = unquote(server.username or ""), unquote(server.password or "")
        self._host = server.hostname or ""
        usual = SUBMISSION if self._user and not self._tls else PORTS[server.scheme]
        self._port = server.port or usual
        self._from = _address("mail_from", sender) if sender is not None else self._usual_sender()
        self._refused = Outage("alerts do not reach some of the addresses")
        self.name = f"the SMTP server {self._host}:{self._port}"

    def send(self, alerts: Sequence[Alert]) -> None:
        with self._connected() as smtp:
            if self._user:
                if not self._tls and not isinstance(smtp.sock, ssl.SSLSocket) and self._host not in HERE:
                    raise OSError("it offers no encryption, so the password is not sent")
                smtp.login(self._user, self._password)
            refused = smtp.send_message(self._message(alerts))  # all of them refused: an error
        if refused:
            self._refused.failed(OSError(str(refused)))  # not raised, which would send the mail to the others again
        else:
            self._refused.worked()

    def _connected(self) -> smtplib.SMTP:
        if self._tls:
            context = ssl.create_default_context()
            return smtplib.SMTP_SSL(self._host, self._port, timeout=TIMEOUT, context=context)
        smtp = smtplib.SMTP(self._host, self._port, timeout=TIMEOUT)
        try:
            smtp.ehlo_or_helo_if_needed()
            if (
                smtp.has_extn("starttls") and self._host not in HERE
            ):  # a server here has a certificate of its own making
                smtp.starttls(context=ssl.create_default_context())
        except BaseException:
            smtp.close()
            raise
        return smtp

    def _message(self, alerts: Sequence[Alert]) -> EmailMessage:
        message = EmailMessage()
        first = alerts[0].text
        more = f", and {len(alerts) - 1} more" if len(alerts) > 1 else ""
        message["Subject"] = "pgqueue: " + (first if len(first) <= LONGEST else first[: LONGEST - 1] + "…") + more
        message["From"] = self._from
        message["To"] = ", ".join(self._to)
        message["Date"] = formatdate()
        message["Message-ID"] = make_msgid(domain=self._from.rpartition("@")[2])
        message["Auto-Submitted"] = "auto-generated"  # RFC 3834: no answer of a holiday
        message.set_content("".join(f"{alert.text}\n" for alert in alerts))
        return message

    def _usual_sender(self) -> str:
        return self._user if _is_address(self._user) else f"pgqueue@{socket.gethostname() or 'localhost'}"


def _server(url: object) -> SplitResult:
    """The parts of the URL of a server. Raises ValueError, which does not show the URL: it may hold a password."""
    error = ValueError("smtp is a URL as smtp://user:password@host:587 or smtps://host")
    if not isinstance(url, str) or not re.fullmatch(r"smtps?://[!-~]+", url):
        raise error
    try:
        parts = urlsplit(url)
        if not parts.hostname or parts.port == 0 or parts.path.strip("/") or parts.query or parts.fragment:
            raise error
    except ValueError:
        raise error from None
    return parts


def _address(name: str, value: object) -> str:
    if not isinstance(value, str) or not _is_address(value):
        raise ValueError(f"{name} must be an address as ada@example.org, not {printable.line(repr(value))}")
    return value


def _is_address(text: str) -> bool:
    r"""Neither spaces, which end a line of SMTP, nor `<>,;:"()[]\`, which have a meaning in a header."""
    return re.fullmatch(r'[^\s<>,;:"()\[\]\\\x00-\x1f@]+@[^\s<>,;:"()\[\]\\\x00-\x1f@]+', text) is not None
