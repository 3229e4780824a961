"""Declares what lasts as long as its client, and a will; then waits for its end. Says {"ready": true} when it is done.

declarer.py DSN
"""

import json
import sys

import pgqueue


def main(dsn: str) -> None:
    with pgqueue.Client(dsn, poll=None, session_grace=0) as client:
        client.exchanges.declare("mine", durable=False)
        client.create_queue("exclusive", exclusive=True).put(1)
        client.create_queue("shared", auto_delete=True).take(0)
        client.exchanges.set_will("wills", "status", "died", retain=True)
        print(json.dumps({"ready": True}), flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
