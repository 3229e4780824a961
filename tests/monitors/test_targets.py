"""Where alerts go: webhooks, Slack, Alertmanager and e-mail, with servers that are well and that are not."""

from __future__ import annotations

import email
import email.policy
import queue
import socket
import socketserver
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from email.message import EmailMessage
from itertools import pairwise
from typing import Any

import pytest
from eventually import eventually

from pgqueue.monitors import alertmanager, mail, targets, webhook
from pgqueue.monitors.alertmanager import Alertmanager
from pgqueue.monitors.alerts import Alert, Monitor
from pgqueue.monitors.mail import Mail
from pgqueue.monitors.targets import Senders, Target
from pgqueue.monitors.webhook import Slack, Webhook
from tests.monitors.conftest import Hook

pytestmark = pytest.mark.once

Sent = Callable[..., None]


def an_alert(text: str = "too long", **values: Any) -> Alert:
    usual = {"kind": "length", "name": "mail", "queue": "mail", "value": 7, "since": 1000.0, "at": 1000.0}
    return Alert(**{**usual, "text": text, **values})


@pytest.fixture
def sent() -> Iterator[Sent]:
    """Sends alerts to targets. What is under way at the end of the test is waited for."""
    made: list[Senders] = []

    def send(some: Target | Sequence[Target], *alerts: Alert) -> None:
        senders = Senders([some] if isinstance(some, Target) else some)
        made.append(senders)
        senders.tell(alerts, [alert for alert in alerts if alert.state == "firing"])

    yield send
    for senders in made:
        senders.close()


class Mailbox(socketserver.ThreadingTCPServer):
    """An SMTP server, as far as a client needs one: no encryption, and any password. `refused`: recipients."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self) -> None:
        self.got: queue.SimpleQueue[EmailMessage] = queue.SimpleQueue()
        self.said: list[str] = []
        self.refused: list[str] = []
        super().__init__(("127.0.0.1", 0), _Session)
        self.url = f"smtp://127.0.0.1:{self.server_address[1]}"


class _Session(socketserver.StreamRequestHandler):
    server: Mailbox

    def handle(self) -> None:
        self._say("220 here")
        while line := self.rfile.readline().decode().rstrip("\r\n"):
            self.server.said.append(line)
            match line.split()[0].upper():
                case "EHLO":
                    self._say("250-here", "250 AUTH PLAIN")
                case "AUTH":
                    self._say("235 yes")
                case "RCPT" if line.rpartition(":")[2] in self.server.refused:
                    self._say("550 no such box")
                case "DATA":
                    self._say("354 go on")
                    lines = []
                    while (part := self.rfile.readline()) != b".\r\n":
                        lines.append(part)
                    message = email.message_from_bytes(b"".join(lines), policy=email.policy.default)
                    self.server.got.put(message)  # type: ignore[arg-type]  # the policy makes it one
                    self._say("250 kept")
                case "QUIT":
                    self._say("221 bye")
                    return
                case _:
                    self._say("250 yes")

    def _say(self, *lines: str) -> None:
        self.wfile.write("".join(f"{line}\r\n" for line in lines).encode())


@pytest.fixture
def mailbox(quick: None) -> Iterator[Mailbox]:
    with Mailbox() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


# --- a webhook, and what goes wrong with any target


@pytest.mark.parametrize("statuses", [[500], [500, 302], [404, 503]], ids=str)
def test_three_attempts(hook, sent, caplog, statuses):
    for status in statuses:
        hook.statuses.put(status)
    sent(Webhook(hook.url), an_alert())
    posted = [hook.posted.get(timeout=30) for _ in range(len(statuses) + 1)]
    assert {(one.path, one.kind) for one in posted} == {("/secret?key=1", "application/json")}
    assert all(one.json["text"] == "too long" for one in posted)
    eventually(lambda: "it works again" in caplog.text)
    assert hook.posted.empty()


def test_a_target_that_refuses_is_given_up_and_logged_once_without_its_secrets(hook, sent, caplog):
    for status in (500, 302, 418, *[500] * 9):
        hook.statuses.put(status)
    sent(Webhook(hook.url), *(an_alert(f"number {n}") for n in range(11)))
    texts = [hook.posted.get(timeout=30).json["text"] for _ in range(13)]  # the redirect was not followed
    assert texts == ["number 0"] * 3 + [f"number {n}" for n in range(1, 11)]  # while it fails, one attempt for each
    eventually(lambda: len(caplog.records) == 2)
    assert [record.getMessage() for record in caplog.records] == [
        f"alerts do not reach the webhook at {hook.base}: HTTP Error 500: Internal Server Error",
        f"alerts do not reach the webhook at {hook.base}: it works again",
    ]


def test_no_pause_outlasts_the_monitor(hook, sent, monkeypatch):
    monkeypatch.setattr(targets, "PAUSES", (3600.0, 3600.0))
    hook.statuses.put(500)
    senders = Senders([Webhook(hook.url)])
    senders.tell([an_alert()], [])
    hook.posted.get(timeout=30)
    senders.close()
    assert senders._senders[0]._thread.is_alive() is False
    assert hook.posted.empty()


def test_an_alert_of_the_last_moment_is_sent(hook):
    senders = Senders([Webhook(hook.url)])
    senders.tell([an_alert("at last")], [])
    senders.close()
    assert hook.posted.get(timeout=30).json["text"] == "at last"


@pytest.mark.parametrize("behaviour", ["refuses", "is silent", "hangs up", "talks nonsense"])
@pytest.mark.parametrize("kind", ["webhook", "mail"])
def test_a_server_of_another_kind(monkeypatch, caplog, sent, quick, behaviour, kind):
    monkeypatch.setattr(webhook, "TIMEOUT", 0.05)
    monkeypatch.setattr(mail, "TIMEOUT", 0.05)
    monkeypatch.setattr(targets, "PAUSES", ())
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        if behaviour != "refuses":
            server.listen()
        port = server.getsockname()[1]

        def answer() -> None:
            conn, _ = server.accept()
            with conn:
                if behaviour == "talks nonsense":
                    conn.sendall(b"nonsense\r\n")
                if kind == "webhook":
                    conn.recv(65536)

        thread = threading.Thread(target=answer)
        if behaviour in ("hangs up", "talks nonsense"):
            thread.start()
        target = Webhook(f"http://127.0.0.1:{port}") if kind == "webhook" else to_mail(f"smtp://127.0.0.1:{port}")
        sent(target, an_alert())
        place = "the webhook at http://127.0.0.1" if kind == "webhook" else "the SMTP server 127.0.0.1"
        eventually(lambda: f"alerts do not reach {place}:{port}: " in caplog.text)
        if thread.ident:
            thread.join()


def test_targets_do_not_wait_for_each_other(hooks: list[Hook], mailbox, blocking, caplog, monkeypatch):
    """One hangs, one answers 500, one redirects: the others get theirs, and the looks go on."""
    hangs, fails, redirects, works = hooks
    hangs.answers.clear()
    for _ in range(1000):
        fails.statuses.put(500)
        redirects.statuses.put(302)
    client = blocking()
    mails = client.queue("mail")
    mails.put(1)
    called: queue.SimpleQueue[Alert] = queue.SimpleQueue()
    with Monitor(
        client,
        callback=called.put,
        webhook=fails.url,
        slack=redirects.url,
        alertmanager=[hangs.base, works.base],
        mail="ada@example.org",
        smtp=mailbox.url,
        interval=0.02,
        health=False,
        length=10,
        age=None,
        factors=[],
    ):
        for n in range(5):
            mails.put_many(range(20))
            assert called.get(timeout=30).state == "firing"
            mails.truncate()
            assert called.get(timeout=30).state == "resolved", n
        got: list[str] = []
        while len(got) < 10:  # a mail has all alerts that waited for it
            got += mailbox.got.get(timeout=30).get_content().splitlines()
        managed: list[str] = []
        while len(managed) < 10:
            managed += [alert["annotations"]["summary"] for alert in works.posted.get(timeout=30).json]
        hangs.answers.set()
    assert [text.startswith("resolved: ") for text in got] == [False, True] * 5
    assert [text.startswith("resolved: ") for text in managed] == [False, True] * 5
    warned = [record.getMessage() for record in caplog.records if record.name == "pgqueue"]
    failures = [one for one in warned if "do not reach" in one and "works" not in one]
    others = [one for one in failures if hangs.base not in one]  # that one is given up if all this takes 5 s
    assert sorted(one.split(": ")[1] for one in others) == ["HTTP Error 302", "HTTP Error 500"]


def test_what_waits_for_a_target_is_bounded(hook, monkeypatch):
    monkeypatch.setattr(targets, "PENDING", 5)
    hook.answers.clear()
    senders = Senders([Webhook(hook.url)])
    senders.tell([an_alert("first")], [])
    assert hook.posted.get(timeout=30).json["text"] == "first"
    senders.tell([an_alert(f"number {n}") for n in range(20)], [])
    hook.answers.set()
    assert [hook.posted.get(timeout=30).json["text"] for _ in range(5)] == [f"number {n}" for n in range(15, 20)]
    senders.close()
    assert hook.posted.empty()


# --- Slack


def test_slack_gets_texts_and_obeys_none(hook, sent):
    sent(Slack(hook.url), an_alert("queue '<!channel>' & *more*"), an_alert("second"))
    assert hook.posted.get(timeout=30).json == {
        "text": "queue '&lt;!channel&gt;' &amp; *more*\nsecond",
        "mrkdwn": False,
    }


def test_slack_gets_many_alerts_in_few_messages(hook, sent):
    sent(Slack(hook.url), *(an_alert(f"number {n}") for n in range(50)))
    lines = [hook.posted.get(timeout=30).json["text"].splitlines() for _ in range(3)]
    assert [len(one) for one in lines] == [20, 20, 10]
    assert [text for one in lines for text in one] == [f"number {n}" for n in range(50)]


# --- Alertmanager


def test_an_alertmanager_gets_the_alerts_as_its_api_has_them(hook, sent):
    target = Alertmanager(hook.base + "/", 10.0, {"env": "test", "queue": "mine"})
    before = time.time()
    sent(
        target,
        an_alert("long"),
        an_alert("over", kind="growth", factor=5.0, queue="", state="resolved", at=1234.5),
        an_alert("late", kind="late_schedule", name="nightly"),
        an_alert("bad", kind="health", name="tick", queue=None),
    )
    posted = hook.posted.get(timeout=30)
    assert (posted.path, posted.kind) == ("/api/v2/alerts", "application/json")
    long, late, bad, over = posted.json
    assert long["labels"] == {"alertname": "pgqueue_length", "env": "test", "queue": "mine"}
    assert long["annotations"] == {"summary": "long"}
    assert datetime.fromisoformat(long["startsAt"]).timestamp() == 1000
    assert before + 240 <= datetime.fromisoformat(long["endsAt"]).timestamp() + 0.001 <= time.time() + 240.001
    assert over["labels"]["factor"] == "5"
    assert datetime.fromisoformat(over["endsAt"]).timestamp() == 1234.5
    assert (late["labels"]["schedule"], bad["labels"]["check"]) == ("nightly", "tick")
    assert "check" not in late["labels"]


@pytest.mark.slow
def test_what_fires_is_sent_again_before_it_ends_and_what_is_over_once(hook, blocking, monkeypatch):
    monkeypatch.setattr(alertmanager, "AGAIN", 0.1)
    client = blocking()
    client.queue("mail").put_many(range(20))
    options: dict[str, Any] = {"interval": 0.02, "health": False, "length": 10, "factors": []}
    with Monitor(client, alertmanager=hook.base, **options):
        first = [hook.posted.get(timeout=30).json for _ in range(5)]
        client.queue("mail").truncate()
        while not (last := hook.posted.get(timeout=30).json[-1])["annotations"]["summary"].startswith("resolved"):
            pass
        assert datetime.fromisoformat(last["endsAt"]).timestamp() <= time.time()
    assert hook.posted.empty()  # it is not sent again
    assert all(len(alerts) == 1 for alerts in first)
    sent = [alerts[0] for alerts in first]
    assert len({alert["startsAt"] for alert in sent}) == 1
    assert all(after["endsAt"] > before["endsAt"] for before, after in pairwise(sent))


def test_an_alertmanager_that_was_away_gets_what_fires(hook, blocking, monkeypatch):
    monkeypatch.setattr(alertmanager, "AGAIN", 0.1)
    for _ in range(6):
        hook.statuses.put(503)
    client = blocking()
    client.queue("mail").put_many(range(20))
    with Monitor(client, alertmanager=hook.base, interval=0.02, health=False, length=10, factors=[]):
        summaries = [hook.posted.get(timeout=30).json[0]["annotations"]["summary"] for _ in range(7)]
    assert summaries == ["queue 'mail' has 20 ready tasks, over 10"] * 7


# --- e-mail


def to_mail(url: str, to: str | Sequence[str] = "ada@example.org", sender: str | None = "pgqueue@example.org") -> Mail:
    return Mail(to, url, sender)


def test_a_mail_has_the_alerts_of_a_look(mailbox, sent):
    to = ["ada@example.org", "bob@example.org"]
    sent(to_mail(mailbox.url, to), an_alert("queue 'käse' is too long"), an_alert("queue 'b' is too long"))
    message = mailbox.got.get(timeout=30)
    assert message["Subject"] == "pgqueue: queue 'käse' is too long, and 1 more"
    assert (message["From"], message["To"]) == ("pgqueue@example.org", "ada@example.org, bob@example.org")
    assert message["Auto-Submitted"] == "auto-generated"
    assert message["Message-ID"].endswith("@example.org>")
    assert message["Date"]
    assert message.get_content().splitlines() == ["queue 'käse' is too long", "queue 'b' is too long"]
    # Python 3.13 writes the words of a command in small letters.
    assert [line.lower() for line in mailbox.said if line.startswith("rcpt")] == [f"rcpt to:<{one}>" for one in to]


def test_a_long_subject_is_cut(mailbox, sent):
    sent(to_mail(mailbox.url), an_alert("queue 'x' " + "x" * 500))
    message = mailbox.got.get(timeout=30)
    assert len(message["Subject"]) < 140
    assert "x" * 500 in message.get_content()


def test_credentials_for_a_server_here(mailbox, sent):
    sent(Mail("ada@example.org", mailbox.url.replace("//", "//bob%40example.org:p%3Aw@"), None), an_alert())
    assert mailbox.got.get(timeout=30)["From"] == "bob@example.org"
    assert "AUTH PLAIN AGJvYkBleGFtcGxlLm9yZwBwOnc=" in mailbox.said


def test_no_password_goes_out_without_encryption(mailbox, sent, caplog, monkeypatch):
    monkeypatch.setattr(mail, "HERE", ())
    sent(Mail("ada@example.org", mailbox.url.replace("//", "//bob:secret@"), None), an_alert())
    eventually(lambda: "it offers no encryption, so the password is not sent" in caplog.text)
    assert not any(line.startswith("AUTH") for line in mailbox.said)
    assert "secret" not in caplog.text


def test_a_mail_that_is_refused(mailbox, sent, caplog):
    mailbox.refused = ["<ada@example.org>", "<bob@example.org>"]
    both = to_mail(mailbox.url, ["ada@example.org", "bob@example.org"])
    sent(both, an_alert())
    eventually(lambda: "alerts do not reach the SMTP server" in caplog.text)
    eventually(lambda: [line.lower() for line in mailbox.said].count("quit") == 3)  # the attempts are over
    assert "no such box" in caplog.text
    mailbox.refused = ["<bob@example.org>"]
    sent(both, an_alert("second"))
    eventually(lambda: "alerts do not reach some of the addresses: {'bob@example.org'" in caplog.text)
    assert "second" in mailbox.got.get(timeout=30).get_content()
    assert mailbox.got.empty()


@pytest.mark.parametrize(
    ("url", "port"),
    [
        ("smtp://mail", 25),
        ("smtp://ada:x@mail", 587),
        ("smtps://mail", 465),
        ("smtps://ada:x@mail", 465),
        ("smtp://mail:2525/", 2525),
        ("smtp://[::1]:26", 26),
    ],
)
def test_the_port_of_a_mail_server(url: str, port: int):
    assert to_mail(url)._port == port
