"""One round of one contender: its program is run for each figure, against an address of its own."""

from __future__ import annotations

import json
import os
import select
import statistics
import struct
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

PROGRAMS = Path(__file__).parent / "programs"
FORMAT = "qdd"  # as in programs/common.py: the number of tasks, the time of the first and of the last
UP = b"up\n"
LIMIT = 60  # seconds for one action
DRAIN = 8  # seconds: a slower drain is cut off, and its rate is that of the tasks done
SHARE = 10  # of the tasks, one in so many is put singly


Addresses = Callable[[], AbstractContextManager[str]]  # of a fresh database or queue


@dataclass(frozen=True)
class Cell:
    """`addresses`: one for each figure, since a worker that was killed may have left tasks."""

    python: Path
    program: str
    addresses: Addresses
    folder: Path
    cleared: bool = False  # whether the program has to remove what it made; a database is dropped

    def describe(self) -> dict[str, str]:
        with self.addresses() as address:
            found: dict[str, str] = json.loads(self._run("describe", address))
            return found

    def measure(self, tasks: int, beats: int) -> dict[str, float]:
        """The rates in tasks a second, and the median pick-up in seconds."""
        single = tasks // SHARE
        with self._prepared() as address:
            put = single / self._put(address, single, 1)
            bulk = tasks / self._put(address, tasks, 1000)
            one = self._drain(address, single + tasks, 1)
        with self._prepared() as address:
            self._put(address, tasks, 1000)
            two = self._drain(address, tasks, 2)
        with self._prepared() as address:
            return {"put": put, "bulk": bulk, "one": one, "two": two, "pick_up": self._pick_up(address, beats)}

    @contextmanager
    def _prepared(self) -> Iterator[str]:
        with self.addresses() as address:
            self._run("setup", address)
            try:
                yield address
            finally:
                if self.cleared:
                    self._run("clear", address)

    def _put(self, address: str, n: int, batch: int) -> float:
        return float(self._run("put", address, str(n), str(batch)))

    def _drain(self, address: str, n: int, processes: int) -> float:
        """Tasks a second, between the first and the last that a handler had."""
        with ExitStack() as stack:
            workers = [stack.enter_context(self._worker(address)) for _ in range(processes)]
            for worker in workers:
                worker.go()
            began = time.monotonic()
            while sum(worker.counted()[0] for worker in workers) < n and time.monotonic() - began < DRAIN:
                for worker in workers:
                    worker.check()
                time.sleep(0.01)
            counts = [found for worker in workers if (found := worker.counted())[0]]
        if not counts:
            raise RuntimeError(f"no task was handled within {DRAIN} s")
        done, first, last = zip(*counts, strict=True)
        return float(sum(done) / (max(last) - min(first)))

    def _pick_up(self, address: str, beats: int) -> float:
        with self._worker(address) as worker:
            worker.go()
            self._run("beat", address, str(beats))
            deadline = time.monotonic() + LIMIT
            while len(times := worker.times()) < beats:
                worker.check()
                if time.monotonic() > deadline:
                    raise TimeoutError(f"{len(times)} of {beats} tasks were handled within {LIMIT} s")
                time.sleep(0.02)
        return statistics.median(times[beats // 5 :])  # without those that warm up

    def _run(self, *arguments: str) -> str:
        command = [str(self.python), str(PROGRAMS / self.program), *arguments]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT)
        if ended.returncode:
            raise RuntimeError(f"{arguments[0]}: {(ended.stderr.strip().splitlines() or ['failed'])[-1]}")
        return ended.stdout

    @contextmanager
    def _worker(self, address: str) -> Iterator[Worker]:
        """A running worker, which has connected and waits for go()."""
        counts = self.folder / f"counts-{time.monotonic_ns()}"
        counts.write_bytes(bytes(struct.calcsize(FORMAT)))
        errors = counts.with_suffix(".err")
        command = [str(self.python), str(PROGRAMS / self.program), "work", address, str(counts)]
        with errors.open("w") as file:
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=file, text=True)
        worker = Worker(process, counts, errors)
        try:
            worker.wait_until_up()
            yield worker
        finally:
            process.kill()
            process.communicate()


@dataclass(frozen=True)
class Worker:
    process: subprocess.Popen[str]
    counts: Path
    errors: Path

    def wait_until_up(self) -> None:
        assert self.process.stdout
        said = b""
        while UP not in said:
            if not select.select([self.process.stdout], [], [], LIMIT)[0]:
                raise TimeoutError(f"the worker was not up within {LIMIT} s")
            found = os.read(self.process.stdout.fileno(), 4096)
            if not found:
                self.process.wait(LIMIT)
                self.check()
            said += found

    def go(self) -> None:
        assert self.process.stdin
        print("go", file=self.process.stdin, flush=True)

    def check(self) -> None:
        """RuntimeError with its last line if it has ended."""
        if self.process.poll() is not None:
            raise RuntimeError(f"work: {(self.errors.read_text().strip().splitlines() or ['it ended'])[-1]}")

    def counted(self) -> tuple[int, float, float]:
        n, first, last = struct.unpack(FORMAT, self.counts.read_bytes())
        return int(n), float(first), float(last)

    def times(self) -> list[float]:
        times = self.counts.with_name(self.counts.name + ".times")
        return [float(line) for line in times.read_text().splitlines()] if times.exists() else []
