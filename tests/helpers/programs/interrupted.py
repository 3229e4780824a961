"""Takes until it is interrupted by SIGINT, as somebody's script does, and then obeys once more or ends.

interrupted.py DSN QUEUE once     catches KeyboardInterrupt, and takes again: {"took": data}
interrupted.py DSN QUEUE never    takes and keeps what it takes, and is ended by KeyboardInterrupt
"""

import contextlib
import json
import sys

import pgqueue


def say(**what: object) -> None:
    print(json.dumps(what), flush=True)


def main(dsn: str, name: str, how: str) -> None:
    queue = pgqueue.Client(dsn, poll=None).queue(name)
    with contextlib.suppress(KeyboardInterrupt):
        say(began=True)
        while True:
            queue.take_many(3, 60)
    say(interrupted=True)
    if how == "again":
        task = queue.take(60)
        assert task is not None
        say(took=task.data)
        task.ack()


if __name__ == "__main__":
    main(*sys.argv[1:])
