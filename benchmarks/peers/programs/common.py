"""What every program shares: the work, and the actions that benchmarks/peers asks for.

    python PROGRAM.py describe ADDRESS       prints the settings and the durability as JSON
    python PROGRAM.py setup ADDRESS          creates tables and queues
    python PROGRAM.py put ADDRESS N BATCH    puts N tasks, BATCH at a time; prints the seconds
    python PROGRAM.py beat ADDRESS N         puts N tasks with their time in it, with pauses
    python PROGRAM.py work ADDRESS FILE      takes tasks until it is killed, from the line `go` on stdin
    python PROGRAM.py clear ADDRESS          removes what setup created, where no database is dropped

A handler decodes a task's data, and counts it in FILE: the number of tasks, the time of the first and of the last.
Beside it FILE.times has a line for each task that brought its time with it: the seconds since its put.
"""

import json
import mmap
import os
import random
import struct
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

PAYLOAD = 100  # bytes of JSON
PAUSE = (0.02, 0.04)  # seconds between two tasks of `beat`
FORMAT = "qdd"

Handle = Callable[[dict], None]
Ready = Callable[[], None]


@dataclass(frozen=True)
class Peer:
    settings: str
    durability: Callable[[str], str]  # of an address
    versions: Callable[[str], str]
    setup: Callable[[str], None]
    put: Callable[[str, list, int], float]  # address, items, how many at a time; seconds
    work: Callable[[str, Handle, Ready], None]  # calls Ready once it is connected, and Handle for each task
    clear: Callable[[str], None] = lambda address: None


def item(n: int, at: float = 0.0) -> dict:
    data = {"to": "ada@example.org", "n": n, "at": at, "text": ""}
    return {**data, "text": "x" * (PAYLOAD - len(json.dumps(data, separators=(",", ":"))))}


def batches(items: "list | Beats", size: int) -> Iterator[list]:
    """The items, `size` at a time, each batch made when it is due."""
    for k in range(0, len(items), size):
        yield items[k : k + size]


def timed(put: Callable[[list], object], items: "list | Beats", size: int) -> float:
    """Seconds to put all items, `size` at a time."""
    began = time.perf_counter()
    for batch in batches(items, size):
        put(batch)
    return time.perf_counter() - began


def main(peer: Peer) -> None:
    action, *arguments = sys.argv[1:]
    if action == "describe":
        (address,) = arguments
        described = {"settings": peer.settings, "durability": peer.durability(address)}
        print(json.dumps({**described, "versions": peer.versions(address)}))
    elif action == "setup":
        peer.setup(arguments[0])
    elif action == "put":
        address, n, batch = arguments
        print(peer.put(address, [item(k) for k in range(int(n))], int(batch)))
    elif action == "beat":
        address, n = arguments
        peer.put(address, Beats(int(n)), 1)
    elif action == "work":
        address, path = arguments
        peer.work(address, counting(path), wait_for_go)
    elif action == "clear":
        peer.clear(arguments[0])
    else:
        raise ValueError(f"unknown action: {action}")


class Beats:
    """Tasks with the time in them, each made when it is asked for, after a pause."""

    def __init__(self, n: int) -> None:
        self._n = n

    def __len__(self) -> int:
        return self._n

    def __getitem__(self, part: slice) -> list:
        time.sleep(random.uniform(*PAUSE))
        return [item(part.start, time.monotonic())]


def wait_for_go() -> None:
    print("up", flush=True)
    sys.stdin.readline()


def counting(path: str) -> Handle:
    with open(path, "r+b") as file:
        counts = mmap.mmap(file.fileno(), struct.calcsize(FORMAT))
    times = os.open(f"{path}.times", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    n, first = 0, 0.0

    def handle(data: dict) -> None:
        nonlocal n, first
        now = time.monotonic()
        n, first = n + 1, first or now
        struct.pack_into(FORMAT, counts, 0, n, first, now)
        if data["at"]:
            os.write(times, f"{now - data['at']}\n".encode())

    return handle


def versions(*distributions: str) -> str:
    from importlib.metadata import version

    return ", ".join(f"{name} {version(name)}" for name in distributions)
