"""A small application: tasks in `words` are texts to count, tasks in `mail` are mails to send (a print stands for it).

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

client = pgqueue.Client()  # PGQUEUE_DSN or `pgqueue --dsn` names the database; connects at its first call


@client.handler("words")
def count_words(data: dict[str, Any]) -> None:
    """Count words. Counting twice does no harm, so a task may be handled again after a crash."""
    words = Counter(re.findall(r"\w+", data["text"].lower()))
    often = ", ".join(f"{word} {count}" for word, count in words.most_common(3))
    print(f"{data['title']}: {words.total()} words; {often}", flush=True)


@client.handler("mail")
async def send_mail(data: dict[str, Any], task: pgqueue.AsyncTask) -> None:
    """Send a mail. After an error the task is tried again later: try it with an address without an @."""
    if "@" not in data["to"]:
        raise ValueError(f"{data['to']!r} is not an address")
    await asyncio.sleep(0.05)  # stands for a mail server; other tasks run in the meantime
    print(f"mail to {data['to']}: {data['subject']} (task {task.id}, attempt {task.attempts + 1})", flush=True)


def main() -> None:
    with client:
        client.queue("words").put({"title": "Rose", "text": "Rose is a rose is a rose is a rose"})
        client.queue("mail").put_many({"to": f"{name}@example.org", "subject": "Hello"} for name in ("ada", "bob"))


if __name__ == "__main__":
    main()
