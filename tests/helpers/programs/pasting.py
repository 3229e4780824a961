"""Runs Python files for a reader, each in a fork of this interpreter, which has imported the modules of its arguments.

Each line of the input asks for one, as JSON: file, folder, environment, and the files for stdout and stderr. The answer
is its exit code. The fork is the program's main process as `python FILE` would be, with the same sys.path and __main__.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
from contextlib import suppress
from typing import Any

SECONDS = 120


def main() -> None:
    for name in sys.argv[1:]:
        with suppress(ImportError):
            importlib.import_module(name)
    while line := sys.stdin.readline():
        if (child := os.fork()) == 0:
            break
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)
    else:
        return
    become(**json.loads(line))


def become(file: str, folder: str, environment: dict[str, str], out: str, err: str) -> None:
    """Be the process that `python FILE` would have started."""
    signal.alarm(SECONDS)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    for name, number, mode in ((os.devnull, 0, os.O_RDONLY), (out, 1, os.O_WRONLY), (err, 2, os.O_WRONLY)):
        opened = os.open(name, mode)
        os.dup2(opened, number)
        os.close(opened)
    sys.argv[:] = [file]
    sys.path[0] = folder
    path = os.path.join(folder, file)
    with open(path, encoding="utf-8") as source:
        code = compile(source.read(), path, "exec")
    own: dict[str, Any] = sys.modules["__main__"].__dict__
    own.clear()
    own |= {"__name__": "__main__", "__file__": path, "__spec__": None}
    exec(code, own)


main()
