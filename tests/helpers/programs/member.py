"""Takes tasks under an identity, until told by a line what to do. Answers each with a line.

member.py DSN QUEUE SESSION_GRACE

identify [UUID] -> {"identity": uuid}, or {"error": class}
take N          -> {"taken": [id, ...]}
ack ID          -> {"acked": true}, or {"error": class}; by its id alone
close           -> {"closed": true}
"""

import json
import sys

import pgqueue


def obey(client: pgqueue.Client, queue: pgqueue.Queue, verb: str, argument: str) -> dict[str, object]:
    if verb == "identify":
        return {"identity": client.identify(argument or None)}
    if verb == "take":
        return {"taken": [task.id for task in queue.take_many(int(argument), timeout=10)]}
    if verb == "close":
        client.close()
        return {"closed": True}
    queue.ack(int(argument))
    return {"acked": True}


def main(dsn: str, name: str, grace: str) -> None:
    with pgqueue.Client(dsn, poll=None, session_grace=float(grace)) as client:
        for line in sys.stdin:
            verb, _, argument = line.strip().partition(" ")
            try:
                answer = obey(client, client.queue(name), verb, argument)
            except pgqueue.Error as error:
                answer = {"error": type(error).__name__}
            print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
