"""Takes a task in each of several sessions of one client, and makes an exclusive queue in one. Then waits.

sessions.py DSN QUEUE COUNT SESSION_GRACE
"""

import json
import sys
from contextlib import ExitStack

import pgqueue


def main(dsn: str, queue: str, count: str, grace: str) -> None:
    with pgqueue.Client(dsn, poll=None, session_grace=float(grace)) as client, ExitStack() as stack:
        taken = []
        for n in range(int(count)):
            session = stack.enter_context(client.session(f"holder {n}"))
            task = session.queue(queue).take(timeout=10)
            assert task is not None
            taken.append(task.id)
        session.create_queue("own", exclusive=True)
        print(json.dumps({"taken": taken}), flush=True)
        sys.stdin.readline()


if __name__ == "__main__":
    main(*sys.argv[1:])
