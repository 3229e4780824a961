"""Puts when it is told to, says on which connection, and survives SIGINT. Arguments: DSN, puts before it is ready."""

from __future__ import annotations

import json
import sys

import pgqueue


def say(what: object) -> None:
    print(json.dumps(what), flush=True)


client = pgqueue.Client(sys.argv[1], pool_size=1)
queue = client.queue("q")
for n in range(int(sys.argv[2])):
    queue.put(n)
say("ready")
for line in sys.stdin:
    try:
        queue.put(line.strip())
    except KeyboardInterrupt:
        say("interrupted")
    else:
        (conn,) = client.shell.connections._pools[False].front._free
        say(conn.info.backend_pid)
