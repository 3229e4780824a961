"""Holders of a lock, and leaders."""

from __future__ import annotations

import time
from typing import Any

import pgqueue

from .work import TIMEOUT, Work

LOCK, OFFICE = "the lock", "the office"
HELD, TERM = 0.03, 0.05  # seconds


def lock(work: Work) -> None:
    """Hold a lock for a moment, again and again."""

    def lost(lock: Any) -> None:
        work.journal.write("lost", LOCK)

    with work.client() as client:

        def step() -> None:
            work.journal.write("locking", LOCK)
            try:
                with client.lock(LOCK, TIMEOUT, on_lost=lost) as held:
                    work.journal.write("locked", LOCK, held.fence)
                    time.sleep(HELD)
                    work.journal.write("unlocking", LOCK)
            except pgqueue.LockLost as error:
                work.journal.write("lost", LOCK)
                work.failed(error)
            except pgqueue.LockTimeout as error:
                work.failed(error)
            else:
                work.journal.write("unlocked", LOCK)
                time.sleep(HELD)  # the other one's turn

        work.repeat(step)


def elect(work: Work) -> None:
    """Be elected, lead for a moment, and resign."""
    resigning = False

    def gained(election: pgqueue.Election) -> None:
        work.journal.write("locked", OFFICE, election.fence)

    def lost(election: pgqueue.Election) -> None:
        if resigning:
            work.journal.write("unlocking", OFFICE)
        else:
            work.journal.write("lost", OFFICE)

    with work.client() as client:
        work.journal.write("locking", OFFICE)
        with client.elect(OFFICE, gained, lost) as election:
            while not work.over:
                try:
                    election.wait(TIMEOUT)
                except TimeoutError:
                    continue
                time.sleep(TERM)
                resigning = True
                election.resign()
                resigning = False
                work.journal.write("locking", OFFICE)
            resigning = True
