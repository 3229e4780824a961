"""What the account of an embedded server wrote: nobody acts on it for what is not the server's."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from pgqueue.embedded import EmbeddedServer, reaper
from pgqueue.embedded.cluster import Cluster
from pgqueue.errors import ServerError

ROOT = os.geteuid() == 0


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A server's directory, with a data directory of the account that is not root."""
    tmp_path.chmod(0o711)
    (tmp_path / reaper.DATA).mkdir()
    (tmp_path / reaper.RUN).mkdir()
    (tmp_path / reaper.GATE).touch()
    if ROOT:
        for name in (reaper.DATA, reaper.RUN):
            os.chown(tmp_path / name, pwd.getpwnam("nobody").pw_uid, -1)
    return tmp_path


def forge(root: Path, pid: int, run: str | Path) -> None:
    lines = [pid, root / reaper.DATA, 1, 5432, run, "", "1 1", "ready"]
    (root / reaper.DATA / "postmaster.pid").write_text("\n".join(map(str, lines)) + "\n")


@pytest.fixture
def another(tmp_path_factory: pytest.TempPathFactory) -> Iterator[subprocess.Popen[bytes]]:
    """A process that is called postgres, as of another cluster: of this account, and elsewhere."""
    program = tmp_path_factory.mktemp("other") / "postgres"
    shutil.copy(shutil.which("sleep") or "/bin/sleep", program)
    with subprocess.Popen([program, "60"]) as process:
        yield process
        process.kill()


def test_no_process_of_another_cluster_is_stopped(root: Path, another: subprocess.Popen[bytes]) -> None:
    forge(root, another.pid, root / reaper.RUN)
    assert reaper.is_postgres(another.pid)
    assert not reaper.halt(root)
    assert another.poll() is None


@pytest.mark.skipif(not ROOT, reason="an account can only forge what it could do itself")
@pytest.mark.parametrize("name", ["secret", "/tmp/pgqueue-test_of_root"])
def test_no_files_are_deleted_where_only_root_may(root: Path, name: str) -> None:
    secret = root / name
    secret.mkdir(0o700)
    try:
        files = {".s.PGSQL.5432", ".s.PGSQL.5432.lock"}
        for file in files:
            (secret / file).touch()
        forge(root, 999_999_999, secret)
        found = reaper.read(root)
        assert found is not None
        assert found.run == str(root / reaper.RUN)
        Cluster(root, False, {}, None, None, {})._forget(found)
        assert {path.name for path in secret.iterdir()} == files
    finally:
        shutil.rmtree(secret)


@pytest.mark.skipif(not ROOT, reason="an account can only forge what it could do itself")
def test_a_link_in_the_place_of_the_sockets_directory_is_not_followed(root: Path) -> None:
    """It may take that place after the file was read."""
    secret = root / "secret"
    secret.mkdir(0o700)
    (secret / ".s.PGSQL.5432").touch()
    (root / reaper.RUN).rmdir()
    (root / reaper.RUN).symlink_to(secret)
    forge(root, 999_999_999, root / reaper.RUN)
    found = reaper.read(root)
    assert found is not None
    reaper.forget_run(root, found)
    Cluster(root, False, {}, None, None, {})._forget(found)
    assert (secret / ".s.PGSQL.5432").exists()


@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_a_pid_file_that_is_no_file_is_an_error_at_once(root: Path, kind: str) -> None:
    """A link would show the contents of another file, and a pipe would wait without end."""
    path = root / reaper.DATA / "postmaster.pid"
    if kind == "link":
        path.symlink_to("/etc/passwd")
    else:
        os.mkfifo(path)
    with pytest.raises(OSError, match=r"postmaster\.pid"):
        reaper.read(root)
    with pytest.raises(ServerError, match="cannot be stopped"):
        EmbeddedServer(root).halt()
