"""A small application: what is put into `words` is counted, what is put into `mail` is sent, as far as a line says so.

    pgqueue worker examples.app:client      # in one terminal, at the top of the checkout
    python -m examples.app                  # in another: puts a few tasks

The handlers are plain functions. One is sync, the other async; a worker runs both.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from typing import Any

import pgqueue

client = pgqueue.Client()  # where to, say PGQUEUE_DSN and `pgqueue --dsn`; connects at its first call


@client.handler("words")
def count_words(data: dict[str, Any]) -> None:
    """Counting twice does no harm, so it does not matter that a task may be handled again after a crash."""
    words = Counter(re.findall(r"\w+", data["text"].lower()))
    often = ", ".join(f"{word} {count}" for word, count in words.most_common(3))
    print(f"{data['title']}: {words.total()} words; {often}", flush=True)


@client.handler("mail")
async def send_mail(data: dict[str, Any], task: pgqueue.AsyncTask) -> None:
    """An error gives the task back, to be tried again later; try it with an address that has no @ in it."""
    if "@" not in data["to"]:
        raise ValueError(f"{data['to']!r} is not an address")
    await asyncio.sleep(0.05)  # here would be a mail server; meanwhile others are served
    print(f"mail to {data['to']}: {data['subject']} (task {task.id}, attempt {task.attempts + 1})", flush=True)


def main() -> None:
    with client:
        client.queue("words").put({"title": "Rose", "text": "Rose is a rose is a rose is a rose"})
        client.queue("mail").put_many({"to": f"{name}@example.org", "subject": "Hello"} for name in ("ada", "bob"))


if __name__ == "__main__":
    main()
