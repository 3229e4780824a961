"""Claims what there is in a queue, says the claim's id, and waits for its end.

claimer.py DSN QUEUE
"""

import json
import sys

import pgqueue


def main(dsn: str, queue: str) -> None:
    with pgqueue.Client(dsn, poll=None, session_grace=0) as client:
        claim = client.queue(queue).messages.claim()
        print(json.dumps(claim and claim.id), flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
