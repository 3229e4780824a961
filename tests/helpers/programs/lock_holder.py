"""Holds locks and leads, as it is told by lines. Answers each with a line.

lock_holder.py DSN

lock NAME      -> {"fence": number}, when it has the lock, or {"interrupted": true} by SIGINT; one at a time
try NAME       -> {"fence": number or null}
check          -> {"held": true}, or {"lost": text}
release        -> {"released": true}, or {"lost": text}
elect NAME     -> {"campaigns": true}; and {"gained": fence} and {"lost": "leadership"} when that happens
leader         -> {"leader": bool}
backend        -> {"backend": process id of its listener's backend}

{"on_lost": NAME} is told when it happens.
"""

import json
import logging
import sys

import pgqueue

logging.disable()  # a connection that breaks is loud, and expected


def say(**what: object) -> None:
    sys.stdout.write(json.dumps(what) + "\n")  # one write: threads share the stream
    sys.stdout.flush()


class Holder:
    def __init__(self, client: pgqueue.Client) -> None:
        self._client = client
        self._lock: pgqueue.Lock | None = None
        self._election: pgqueue.Election | None = None

    def lock(self, name: str) -> None:
        try:
            self._lock = self._client.lock(name, on_lost=lambda lock: say(on_lost=lock.name)).__enter__()
        except KeyboardInterrupt:
            say(interrupted=True)
        else:
            say(fence=self._lock.fence)

    def try_(self, name: str) -> None:
        self._lock = self._client.try_lock(name)
        say(fence=self._lock and self._lock.fence)

    def check(self, _: str) -> None:
        self._tell("check", held=True)

    def release(self, _: str) -> None:
        self._tell("release", released=True)

    def elect(self, name: str) -> None:
        self._election = self._client.elect(
            name, lambda election: say(gained=election.fence), lambda _: say(lost="leadership")
        )
        say(campaigns=True)

    def leader(self, _: str) -> None:
        say(leader=self._election is not None and self._election.leader)

    def backend(self, _: str) -> None:
        conn = self._client.shell.core.listener()._conn
        say(backend=conn and conn.info.backend_pid)

    def _tell(self, verb: str, **well: object) -> None:
        try:
            getattr(self._lock, verb)()
        except pgqueue.LockLost as error:
            say(lost=str(error))
        else:
            say(**well)


def main(dsn: str) -> None:
    with pgqueue.Client(dsn) as client:
        holder = Holder(client)
        for line in sys.stdin:
            verb, _, argument = line.strip().partition(" ")
            getattr(holder, {"try": "try_"}.get(verb, verb))(argument)


if __name__ == "__main__":
    main(*sys.argv[1:])
