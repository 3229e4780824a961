"""A Flask application whose client is at work before its server forks, as Gunicorn does with preload_app.

    GET /turn   waits for a post on `go`, then takes a task, acks it, puts one, and posts on `came`
    GET /hold   takes a task and keeps it

Both say who answered, and the connection that it used. The process that loaded this answers what is posted on `master`.
"""

import os
import threading

from flask import Flask

from pgqueue._calls.call import Call
from pgqueue.contrib.flask import PgQueue

app = Flask(__name__)
app.config["PGQUEUE_POLL"] = None
queues = PgQueue(app)
with app.app_context():
    client = queues.client
client.queue("done").put("preloaded")  # now there is a pool
heard = client.subscribe("master")  # and a listener, with a thread and a session
BACKEND = Call("SELECT pg_backend_pid()", (), lambda rows: rows[0][0])


def answer() -> None:
    for payload in heard:
        client.queue("answers").put([os.getpid(), payload])


threading.Thread(target=answer, daemon=True).start()


@app.get("/turn")
def turn() -> list[int]:
    client.wait("go", timeout=30)
    client.queue("jobs").take(30).ack()
    client.queue("done").put(os.getpid())
    client.post("came", str(os.getpid()))
    return [os.getpid(), client.shell.connections.run(BACKEND)]


@app.get("/hold")
def hold() -> list[int]:
    return [os.getpid(), client.queue("jobs").take(30).id]
