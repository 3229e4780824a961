"""The account that the server runs as.

PostgreSQL refuses to run as root. As root we run it as an account which exists, `postgres` or else
`nobody`, and create none; as anybody else we run it as ourselves. initdb asks for the account's name, so
a bare uid without an entry in passwd does not do.

Programs get a bare environment: PG* variables of the caller would change what they do, its locale what
they say, and its secrets have no place in a process that outlives it under another account.
"""

import os
import pwd
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pgqueue.errors import ServerError

ENVIRONMENT = {"PATH": os.defpath, "LC_ALL": "C", "TZ": "UTC"}
if "LD_LIBRARY_PATH" in os.environ:  # some builds find their own libraries only so
    ENVIRONMENT["LD_LIBRARY_PATH"] = os.environ["LD_LIBRARY_PATH"]


@dataclass(frozen=True)
class Account:
    """An account to become; without ids it is ourselves."""

    name: str
    uid: int | None = None
    gid: int | None = None

    def run(
        self, *command: str | Path, cwd: Path | str = "/", pass_fds: Sequence[int] = ()
    ) -> subprocess.CompletedProcess[str]:
        """Run a program to its end. OSError if this account cannot execute it."""
        return subprocess.run(
            [str(word) for word in command],
            cwd=cwd,
            pass_fds=pass_fds,
            env=ENVIRONMENT,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            user=self.uid,
            group=self.gid,
            extra_groups=None if self.uid is None else [],
        )

    def own(self, path: Path) -> Path:
        """Give a file of ours to the account."""
        if self.uid is not None and self.gid is not None:
            os.chown(path, self.uid, self.gid, follow_symlinks=False)
        return path

    def can_enter(self, directory: Path) -> bool:
        """True if the account gets into `directory`. The kernel is asked: modes are not all it goes by."""
        # Not cwd=directory: subprocess changes the directory first, and the account only then.
        return self.run("/bin/sh", "-c", 'cd -- "$1"', "sh", directory).returncode == 0


def choose(data: Path) -> Account:
    """The account for the server over `data`: where that exists, its owner.

    Raises ServerError when we are root and there is no account to become.
    """
    if os.geteuid() != 0:
        return Account("")
    names: tuple[str, ...] = ("postgres", "nobody")
    if chosen := os.environ.get("PGQUEUE_EMBEDDED_USER"):
        names = (chosen,)
    try:
        if data.exists() and (owner := data.stat().st_uid) != 0:
            names = (pwd.getpwuid(owner).pw_name,)
    except KeyError:
        raise ServerError(f"{data} belongs to uid {owner}, which has no account: chown it") from None
    for name in names:
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        if entry.pw_uid != 0:
            return Account(name, entry.pw_uid, entry.pw_gid)
    raise ServerError(
        f"PostgreSQL does not run as root, and there is no account {' or '.join(names)} to run it as: "
        "name one in PGQUEUE_EMBEDDED_USER, or set PGQUEUE_DSN to a server of your own"
    )
