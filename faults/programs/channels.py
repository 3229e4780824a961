"""A process that posts, and one that subscribes."""

from __future__ import annotations

import contextlib

from .work import TIMEOUT, Work

CHANNEL = "news"


def post(work: Work) -> None:
    with work.client() as client:

        def step() -> None:
            (label,) = work.labels()
            work.journal.write("posting", label)
            try:
                client.post(CHANNEL, label)
            except Exception as error:
                work.journal.write("unposted", label, type(error).__name__)
                raise
            work.journal.write("posted", label)
            work.rest()

        work.repeat(step)


def subscribe(work: Work) -> None:
    """Listen until SIGTERM. A subscription that cannot begin is tried again."""
    with work.client() as client:

        def listen() -> None:
            with client.subscribe(CHANNEL, on_gap=lambda reason: work.journal.write("gap", reason)) as news:
                work.journal.write("listening")
                while not work.over:
                    with contextlib.suppress(TimeoutError):
                        work.journal.write("heard", news.get(TIMEOUT))

        work.repeat(listen)
