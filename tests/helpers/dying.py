"""Whether processes live, and what ends them."""

from __future__ import annotations

import re
from pathlib import Path


def alive(pid: int) -> bool:
    """Whether the process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def catches(pid: int, number: int) -> bool:
    """Whether the process has a handler for a signal."""
    (mask,) = re.findall(r"^SigCgt:\t([0-9a-f]+)$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return bool(int(mask, 16) >> (number - 1) & 1)
