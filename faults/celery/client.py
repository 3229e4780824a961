"""The client of the soak: sends a task, waits for its result, and sends the next; chords and later tasks in between.

Its journal has `sent LABEL` for each message that was sent, `got LABEL` for each result, and `error` for what failed.
"""

from __future__ import annotations

import itertools
import signal
import sys
import threading

from celery import chord

from .application import gather, journal, note

PAUSE = 0.4  # seconds between two results
PATIENCE = 60.0  # seconds for a result
MEMBERS = 5
stopping = threading.Event()


def main() -> int:
    signal.signal(signal.SIGTERM, lambda *about: stopping.set())
    for number in itertools.count():
        label = f"note-{number}"
        try:
            if number % 10 == 9:
                members = [f"{label}-{member}" for member in range(MEMBERS)]
                result = chord(note.s(member, 0.01) for member in members)(gather.s())
                label = " ".join(members)
            else:
                result = note.apply_async((label, 0.01), countdown=2 if number % 10 == 4 else 0)
            for each in label.split():
                journal.write("sent", each)
            result.get(timeout=PATIENCE)
            journal.write("got", label)
        except Exception as error:  # the server is away; the next call may succeed
            journal.write("error", type(error).__name__, error)
        if stopping.wait(PAUSE):
            return 0
    return 1


if __name__ == "__main__":
    sys.exit(main())
