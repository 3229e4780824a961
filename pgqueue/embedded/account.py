"""The account that the server runs as.

PostgreSQL refuses to run as root. If the caller is root, the server runs as an existing account; no account is created.
Otherwise it runs as the caller's account. initdb needs the account's name, so a uid without an entry in passwd is not
enough.

Two servers of one account can read and write each other's files: a superuser of the one, for example by COPY FROM
PROGRAM, controls the other. So the accounts are tried in this order:

    pgqueue     an administrator made it for this: useradd --system pgqueue
    postgres    unless a cluster of the system's packages belongs to it
    nobody      with a warning, since other services may run as it too

The programs get a minimal environment. The caller's PG* variables would change their behaviour, its locale their
messages, and its secrets must not stay in a process that outlives the caller under another account.
"""

import os
import pwd
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pgqueue.errors import ServerError

from .._values.logs import log

NAMES = ("pgqueue", "postgres", "nobody")
#: Where the packages of Debian, Red Hat, Arch and others keep the clusters of the account `postgres`.
CLUSTERS = (
    ("/etc/postgresql", "*/*/postgresql.conf"),
    ("/var/lib/postgresql", "*/*/PG_VERSION"),
    ("/var/lib/postgresql", "*/PG_VERSION"),
    ("/var/lib/pgsql", "*/*/PG_VERSION"),
    ("/var/lib/pgsql", "*/PG_VERSION"),
    ("/var/lib/postgres", "*/PG_VERSION"),
)
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
        self,
        *command: str | Path,
        cwd: Path | str = "/",
        pass_fds: Sequence[int] = (),
        environment: Mapping[str, str] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run a program to its end; `environment` is added to the minimal one. OSError if it cannot be executed."""
        return subprocess.run(
            [str(word) for word in command],
            cwd=cwd,
            pass_fds=pass_fds,
            env={**ENVIRONMENT, **(environment or {})},
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
    names: tuple[str, ...] = NAMES
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
        if entry.pw_uid != 0 and not (names is NAMES and name == "postgres" and _has_cluster(entry)):
            if names is NAMES and name == "nobody":
                log.warning(
                    "the embedded server runs as the account nobody, which other services may use: make one for it"
                    " with `useradd --system pgqueue`, or name one in PGQUEUE_EMBEDDED_USER"
                )
            return Account(name, entry.pw_uid, entry.pw_gid)
    raise ServerError(
        f"PostgreSQL does not run as root, and there is no account {' or '.join(names)} to run it as: "
        "name one in PGQUEUE_EMBEDDED_USER, or set PGQUEUE_DSN to a server of your own"
    )


def _has_cluster(entry: pwd.struct_passwd) -> bool:
    """Whether the machine has a cluster of the system's packages, which would belong to the same account."""
    places = (*CLUSTERS, (entry.pw_dir, "*/PG_VERSION"))
    return any(any(Path(home).glob(pattern)) for home, pattern in places)
