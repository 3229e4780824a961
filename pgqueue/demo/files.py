"""The work of the demo: the files of a folder, and their digests."""

from __future__ import annotations

import hashlib
import os
import sysconfig
from pathlib import Path


def standard_library() -> Path:
    return Path(sysconfig.get_path("stdlib"))


def readable_files(folder: Path) -> list[str]:
    """The regular files below a folder that can be read.

    Compiled Python is left out, since it may change during the demo; in the standard library also site-packages.
    """
    left_out = {"__pycache__"} | ({"site-packages", "dist-packages"} if folder == standard_library() else set())
    found = []
    for directory, names, files in os.walk(folder):
        names[:] = [name for name in names if name not in left_out]
        paths = (os.path.join(directory, file) for file in files)
        found += [path for path in paths if os.path.isfile(path) and os.access(path, os.R_OK) and _is_text(path)]
    return sorted(found)


def digest(path: str) -> tuple[int, str]:
    """The number of lines and the SHA-256 of a file."""
    content = Path(path).read_bytes()
    return content.count(b"\n"), hashlib.sha256(content).hexdigest()


def _is_text(path: str) -> bool:
    """Whether a path is text that JSON can hold: a file's name may be any bytes."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True
