"""A worker process of the demo: the command `pgqueue worker`, which never outlives the demo by more than FORCE seconds.

Standard input is a pipe from the demo. A worker ends in order at the end of its line (worker/supervisor.py), unless it
still imports its modules, or waits for a server that is gone: the embedded server ends with the demo. Run by its path,
this file imports the standard library only before it begins to watch the pipe.
"""

from __future__ import annotations

import os
import runpy
import sys
import threading
import time

FORCE = 1.5  # seconds


def end_with_the_demo() -> None:
    """Wait for the end of the demo, and end the process; at once if the process has just begun."""
    began = time.monotonic()
    while os.read(0, 1):
        pass
    time.sleep(min(FORCE, time.monotonic() - began))
    os._exit(1)


if __name__ == "__main__":
    threading.Thread(target=end_with_the_demo, name="pgqueue-demo", daemon=True).start()
    sys.argv[0] = "pgqueue"
    runpy.run_module("pgqueue", run_name="__main__", alter_sys=True)
