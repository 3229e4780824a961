"""Takes tasks and holds them, until told by a line what to do. Answers each with a line.

holder.py DSN QUEUE SESSION_GRACE

take N    -> {"taken": [id, ...]}
ack       -> {"acked": true}, or {"error": class, "message": text}, for the first task held
session   -> {"session": id}
"""

import json
import sys

import pgqueue


def obey(queue: pgqueue.Queue, tasks: list[pgqueue.Task], verb: str, argument: str) -> dict[str, object]:
    if verb == "take":
        tasks += queue.take_many(int(argument), timeout=10)
        return {"taken": [task.id for task in tasks]}
    if verb == "session":
        listener = queue._shell.core.running_listener
        return {"session": listener and listener.session}
    try:
        tasks.pop(0).ack()
    except pgqueue.TakeLost as error:
        return {"error": type(error).__name__, "message": str(error)}
    return {"acked": True}


def main(dsn: str, name: str, grace: str) -> None:
    tasks: list[pgqueue.Task] = []
    with pgqueue.Client(dsn, poll=None, session_grace=float(grace)) as client:
        for line in sys.stdin:
            verb, _, argument = line.strip().partition(" ")
            print(json.dumps(obey(client.queue(name), tasks, verb, argument)), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
