"""One kind of process that lives through an outage: `endurer.py DSN worker|taker|subscriber|scheduler|caller`.

For each line on its input it says which warnings it has logged so far, and how many seconds of CPU it has used.
"""

import contextlib
import json
import logging
import sys
import threading
import time

import pgqueue


class Warnings(logging.Handler):
    def __init__(self):
        super().__init__(logging.WARNING)
        self.texts = []

    def emit(self, record):
        self.texts.append(f"{record.name}: {record.getMessage()}")


def worker(client):
    pgqueue.Worker(client, {"q": lambda data: None}, schedules=False).run()


def taker(client):
    while True:
        client.queue("q").take()


def subscriber(client):
    for _ in client.subscribe("c"):
        pass


def scheduler(client):
    client.schedules.clock().run()


def caller(client):
    while True:
        time.sleep(0.1)
        client.queue("calls").put(1)


KINDS = {kind.__name__: kind for kind in (worker, taker, subscriber, scheduler, caller)}


def main(dsn, kind):
    warnings = Warnings()
    logging.getLogger().addHandler(warnings)
    client = pgqueue.Client(dsn)
    client.schedules.set("s", None, "q", every=3600)

    def run():
        while True:
            with contextlib.suppress(pgqueue.Error):  # it goes on, as a process manager would have it
                KINDS[kind](client)

    threading.Thread(target=run, daemon=True).start()
    for _ in sys.stdin:
        print(json.dumps({"warnings": warnings.texts, "cpu": time.process_time()}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
