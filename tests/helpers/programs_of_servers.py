"""PostgreSQL's own programs, of the version of a test's server."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from servers import Server


def program(name: str, server: Server) -> Path:
    """The server's own, of its version: an older pg_dump refuses a newer server."""
    with server.connect() as admin:
        (bindir,) = admin.execute("SELECT setting FROM pg_config WHERE name = 'BINDIR'").fetchone() or ("",)
    found = shutil.which(name, path=bindir)
    if found is None:
        pytest.skip(f"the server has no {name} in {bindir}")
    return Path(found)
