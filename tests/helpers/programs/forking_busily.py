"""Forks while its threads put, take, listen and connect: `forking_busily.py DSN FORKS` prints how many sockets each
child has kept, of those that were there or were being opened."""

import json
import os
import random
import sys
import threading
import time

import pgqueue
from pgqueue._engine import forks
from pgqueue._engine.bounded import BoundedConnection


def sockets():
    with os.scandir("/proc/self/fd") as entries:
        return sum(os.readlink(entry.path).startswith("socket:") for entry in entries if os.path.lexists(entry.path))


def main(dsn, n):
    client = pgqueue.Client(dsn, pool_size=3, share_commits=False)
    queue = client.queue("q")
    over, closing = threading.Event(), threading.Lock()

    def put():
        while not over.is_set():
            queue.put_many(range(200))

    def take():
        while not over.is_set():
            for task in queue.take_many(50, timeout=0.05):
                task.ack()

    def connect():
        while not over.is_set():
            conn = BoundedConnection.connect(dsn)
            with closing:  # libpq sends the end of a connection before it closes the socket
                conn.close()

    threads = [threading.Thread(target=work, daemon=True) for work in (put, put, put, take, connect, connect)]
    for thread in threads:
        thread.start()
    # The pool connects in the background. A listener that is just being made has a pair of sockets, no connection.
    while len(forks._connections) < 3 or client.shell.core._listener is None:
        time.sleep(0.01)
    kept = []
    for _ in range(int(n)):
        time.sleep(random.random() / 50)
        reading, writing = os.pipe()
        with closing:
            pid = os.fork()
        if pid == 0:
            os.write(writing, bytes([sockets()]))
            os._exit(0)
        kept.append(os.read(reading, 1)[0])
        os.waitpid(pid, 0)
        os.close(reading)
        os.close(writing)
    over.set()
    for thread in threads:
        thread.join()
    client.close()
    print(json.dumps(kept))


if __name__ == "__main__":
    main(*sys.argv[1:])
