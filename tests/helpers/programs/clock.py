"""Fires schedules until it is ended: `clock.py DSN`."""

import json
import sys
import threading

import pgqueue


def main(dsn: str) -> None:
    with pgqueue.Client(dsn) as client:
        clock = client.schedules.clock()
        thread = threading.Thread(target=clock.run)
        thread.start()
        client.schedules.list()
        print(json.dumps("ready"), flush=True)
        sys.stdin.read()
        clock.stop()
        thread.join()


if __name__ == "__main__":
    main(*sys.argv[1:])
