"""Forks children with multiprocessing while its client is at work, and has each do all that it does itself.

    forking.py DSN CHILDREN

Each child prints {"pid", "took", "heard", "backends"}; the parent, once all have ended, the same of itself.
"""

import json
import multiprocessing
import os
import sys
import warnings

import pgqueue
from pgqueue._calls.call import Call

warnings.simplefilter("ignore", DeprecationWarning)  # of a fork where there are threads
BACKEND = Call("SELECT pg_backend_pid()", (), lambda rows: rows[0][0])
SESSION = "SELECT backend_pid FROM pgqueue.sessions WHERE label LIKE '%%:' || %s || ':%%'"


def work(client: pgqueue.Client) -> None:
    """Take, wait and post, with posts and tasks that are one's own."""
    mine = f"of {os.getpid()}"
    with client.subscribe(mine) as own:
        client.queue(mine).put("task")
        task = client.queue(mine).take(20)
        client.post(mine, "post")
        heard = own.get(30)
    task.ack()
    session = client.shell.connections.run(Call(SESSION, (os.getpid(),), lambda rows: rows[0][0]))
    told: dict[str, object] = {"pid": os.getpid(), "took": task.data, "heard": heard}
    told["backends"] = [client.shell.connections.run(BACKEND), session]
    print(json.dumps(told) + "\n", end="", flush=True)  # in one piece: the others print too


def child(client: pgqueue.Client) -> None:
    with client:  # multiprocessing ends its children without atexit
        work(client)


def main(dsn: str, children: str) -> None:
    with pgqueue.Client(dsn, poll=None) as client:
        held = client.queue("held")
        held.put("by the parent")
        task, heard = held.take(20), client.subscribe("everybody")
        fork = multiprocessing.get_context("fork")
        made = [fork.Process(target=child, args=(client,)) for _ in range(int(children))]
        for process in made:
            process.start()
        for process in made:
            process.join()
        assert [process.exitcode for process in made] == [0] * len(made)
        work(client)
        client.post("everybody", "still there")
        assert heard.get(30) == "still there"
        task.ack()


if __name__ == "__main__":
    main(*sys.argv[1:])
