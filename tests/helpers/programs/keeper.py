"""A worker that keeps results: each is {"of": data, "by": pid}.

    keeper.py DSN QUEUE [hold]

Lines: {"ready": pid}, and {"begun": data} when a handler begins. With `hold` the handlers then never return.
"""

import json
import os
import sys
import threading

import pgqueue


def say(**line: object) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def main(dsn: str, queue: str, hold: str = "") -> None:
    client = pgqueue.Client(dsn, poll=None)

    @client.handler(queue, keep_result=3600)
    def handle(data: object, task: pgqueue.Task) -> object:
        task.progress({"by": os.getpid()})
        say(begun=data)
        if hold:
            threading.Event().wait()
        return {"of": data, "by": os.getpid()}

    worker = pgqueue.Worker(client)

    def stop_at_the_end_of_the_input() -> None:
        sys.stdin.read()
        worker.stop()

    threading.Thread(target=stop_at_the_end_of_the_input, daemon=True).start()
    say(ready=os.getpid())
    worker.run()
    client.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
