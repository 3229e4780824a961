"""The account that the server runs as.

PostgreSQL refuses to run as root. If the caller is root, the server runs as an existing account, `postgres` or else
`nobody`; no account is created. Otherwise it runs as the caller's account. initdb needs the account's name, so a uid
without an entry in passwd is not enough.

The programs get a minimal environment. The caller's PG* variables would change their behaviour, its locale their
messages, and its secrets must not stay in a process that outlives the caller under another account.
"""

import os
import pwd
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pgqueue.errors import ServerError

ENVIRONMENT = {"PATH": os.defpath, "LC_ALL": "C", "TZ": "UTC"}
if "LD_LIBRARY_PATH" in os.environ:  # some builds need it to find their own libraries
    ENVIRONMENT["LD_LIBRARY_PATH"] = os.environ["LD_LIBRARY_PATH"]


@dataclass(frozen=True)
class Account:
    """An account to run programs as; without ids, the caller's own."""

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
        """Make the account the owner of a file."""
        if self.uid is not None and self.gid is not None:
            os.chown(path, self.uid, self.gid, follow_symlinks=False)
        return path

    def can_enter(self, directory: Path) -> bool:
        """True if the account can enter `directory`. A program tries it, since file modes alone do not decide."""
        # Not cwd=directory: subprocess changes the directory first, and the account only then.
        return self.run("/bin/sh", "-c", 'cd -- "$1"', "sh", directory).returncode == 0


def choose(data: Path) -> Account:
    """The account for the server of `data`: its owner if the directory exists.

    Raises ServerError if the caller is root and there is no other account to run as.
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
        raise ServerError(f"{data} belongs to uid {owner}, which has no account: change its owner with chown") from None
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
