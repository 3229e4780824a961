"""Many waiting processes in one: a client for each of so many takers of a queue, as in receiver.py.

crowd.py DSN SEED TICK PATIENCE QUEUE CLIENTS
"""

import random
import sys
import threading
from contextlib import ExitStack

import receiver

import pgqueue
from pgqueue._engine import listener, places


def main(dsn: str, seed: str, tick: str, patience: str, name: str, clients: str) -> None:
    listener.TICK = places.CHECK = places.SOON = float(tick)
    with ExitStack() as stack:
        for number in range(int(clients)):
            client = stack.enter_context(pgqueue.Client(dsn, poll=None, pool_size=1))
            chance = random.Random(f"{seed} {number}")
            threading.Thread(target=receiver.receive, args=(client, name, float(patience), chance), daemon=True).start()
        sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
