"""Takes tasks of lanes, judges each take, and settles it in one way or another, or dies of it. For as long as its input
is open.

    lane_taker.py DSN QUEUE SEED

Who has a task of a lane holds an advisory lock on the lane's name: the server frees it with the process, and refuses it
to a second one. And whoever takes a task looks for one of the lane that should have come first: one that was there,
by a snapshot from before the claim, and is still waiting. Each violation is a line; the first line is {"ready": pid}.
"""

import contextlib
import json
import os
import random
import signal
import sys
import threading

import psycopg

import pgqueue

BEFORE = """SELECT t.id FROM pgqueue.task t JOIN pgqueue.task mine ON mine.id = %(id)s
             WHERE t.queue_id = mine.queue_id AND t.lane = mine.lane AND (t.priority, t.id) < (mine.priority, mine.id)
               AND t.state IN ('R', 'L') AND pg_visible_in_snapshot(t.xid, %(snapshot)s::pg_snapshot)
               AND t.releases IS NULL AND t.buries IS NULL"""


def main(dsn: str, name: str, seed: str) -> None:
    ended = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
    chance = random.Random(seed)
    with pgqueue.Client(dsn, session_grace=0.2) as client, psycopg.connect(dsn, autocommit=True) as conn:
        queue = client.queue(name)
        queue.stats()
        print(json.dumps({"ready": os.getpid()}), flush=True)
        while not ended.is_set():
            snapshot = conn.execute("SELECT pg_current_snapshot()::text").fetchone()[0]
            for task in queue.take_many(chance.choice([1, 1, 3]), timeout=0) or queue.take_many(1, timeout=0.2):
                lane = task.data
                if not conn.execute("SELECT pg_try_advisory_lock(hashtext(%s))", [lane]).fetchone()[0]:
                    print(json.dumps({"two at once in": lane}), flush=True)
                if ahead := conn.execute(BEFORE, {"id": task.id, "snapshot": snapshot}).fetchall():
                    print(json.dumps({"taken": task.id, "ahead": ahead, "lane": lane}), flush=True)
                fate = chance.random()
                if fate < 0.01:
                    os.kill(os.getpid(), signal.SIGKILL)
                conn.execute("SELECT pg_advisory_unlock(hashtext(%s))", [lane])
                with contextlib.suppress(pgqueue.TakeLost):  # who is slow may be given up; then nothing changes
                    if fate < 0.10:
                        task.release()
                    elif fate < 0.15:
                        task.release(delay=0.01)
                    elif fate < 0.20:
                        task.bury()
                    else:
                        task.ack()


if __name__ == "__main__":
    main(*sys.argv[1:])
