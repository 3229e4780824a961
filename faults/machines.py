"""Clusters whose machine is at fault: a disk that fills up, and a clock that steps."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .servers import Cluster

SIZE = "400m"
SMALL = {"max_wal_size": "64MB", "min_wal_size": "32MB", "wal_keep_size": "0"}
LIBRARIES = ("/usr/lib/*/faketime/libfaketimeMT.so.1", "/usr/lib*/faketime/libfaketimeMT.so.1")


def no_small_disk() -> str | None:
    """Why there can be no small disk here; None if there can."""
    if not sys.platform.startswith("linux") or os.geteuid() != 0:
        return "a small tmpfs needs root on Linux"
    with _scratch() as place:
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)], capture_output=True)
        if mounted.returncode == 0:
            subprocess.run(["umount", str(place)], check=True)
    return None if mounted.returncode == 0 else f"tmpfs cannot be mounted: {mounted.stderr.decode().strip()}"


def no_clock() -> str | None:
    """Why the server's clock cannot be stepped here; None if it can."""
    return None if _libfaketime() else "libfaketime is not installed"


def _libfaketime() -> Path | None:
    return next((path for pattern in LIBRARIES for path in Path("/").glob(pattern[1:])), None)


@contextmanager
def _scratch() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="pgqueue-faults-") as folder:
        yield Path(folder)


class SmallDisk(Cluster):
    """A cluster on a tmpfs of limited size."""

    def __init__(self, folder: Path, bindir: Path | None) -> None:
        self._mount = folder / "disk"
        self._mount.mkdir()
        options = f"size={SIZE},mode=0711"
        subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(self._mount)], check=True)
        root = self._mount / "server"
        root.mkdir()
        root.chmod(0o711)
        try:
            super().__init__(root, bindir, SMALL)
        except BaseException:
            subprocess.run(["umount", "-l", str(self._mount)], check=False)
            raise

    def fill(self) -> None:
        with contextlib.suppress(OSError), (self._mount / "filler").open("ab", buffering=0) as file:
            piece = b"\0" * (1 << 20)
            while True:
                file.write(piece)

    def free(self) -> None:
        """Also start the server again if it gave up: without room for its log it ends."""
        (self._mount / "filler").unlink(missing_ok=True)
        self.start()

    def close(self) -> None:
        (self._mount / "filler").unlink(missing_ok=True)
        super().close()
        subprocess.run(["umount", "-l", str(self._mount)], check=False)


class FalseClock(Cluster):
    """A cluster whose wall clock is libfaketime's."""

    def __init__(self, folder: Path, bindir: Path | None) -> None:
        self._clock = folder / "clock"
        self.step(0)
        root = folder / "server"
        root.mkdir()
        root.chmod(0o711)
        environment = {
            "LD_PRELOAD": str(_libfaketime()),
            "FAKETIME_TIMESTAMP_FILE": str(self._clock),
            "FAKETIME_NO_CACHE": "1",  # all backends step at the same moment
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }
        super().__init__(root, bindir, environment=environment)

    def step(self, seconds: float) -> None:
        """Set the clock to the true time plus so many seconds. The server sees it at once."""
        new = self._clock.with_suffix(".new")
        new.write_text(f"{seconds:+.0f}\n")
        new.chmod(0o644)
        new.replace(self._clock)
