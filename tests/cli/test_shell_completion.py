"""Completion in the shells themselves: the tab key is pressed in a terminal, and the command line is then run."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import shlex
import shutil
import subprocess
import sys
import termios
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread

import pytest
from commands import environment
from eventually import eventually

from pgqueue.cli import completion

pytestmark = [pytest.mark.once, pytest.mark.slow]

#: What is typed before the tab key, and the queue that it names: each begins with another letter.
QUEUES = {
    "a": "a$(touch ran)`touch ran`",
    "b": "b; touch ran & touch ran | touch ran",
    "c": "c 'single' \"double\" \\ back\\\\slash",
    "d": "d* ? [a-z] {x,y}, ~ # !! !d",
    "e": "e<ran >ran (touch ran) =ls %1 ^x^y, ",
    "f": "fänö 东京,",
}
REFUSED = {
    "v": "v\ntouch ran\n",
    "w": "w\x1b]0;title\x07",
    "x": "x\u202etxt",
    "y": "y\x9b2J",
}
SHELLS = {
    "bash": (["bash", "--norc", "--noprofile", "-i"], "source <(pgqueue completion bash)"),
    "zsh": (["zsh", "-f", "-i"], "autoload -Uz compinit; compinit -D -u; source <(pgqueue completion zsh)"),
    "fish": (["fish", "--no-config", "-i"], "pgqueue completion fish | source"),
}
#: Stands before the real command in PATH: completes as the real one, and else writes down its arguments.
RECORDER = """#!{python}
import json, os, sys
if "_PGQUEUE_COMPLETE" in os.environ or sys.argv[1:2] == ["completion"]:
    from pgqueue import cli
    from pgqueue.cli import names
    names.PATIENCE = 30
    cli.main(prog_name="pgqueue")
with open({record!r}, "a") as record:
    print(json.dumps(sys.argv[1:]), file=record)
"""


@contextmanager
def terminal(command: list[str], folder: Path, settings: dict[str, str]) -> Iterator[Callable[[str], None]]:
    """A program at a terminal of its own. Yields the function that types."""
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        command,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        cwd=folder,
        env=settings,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # fish insists on a terminal that controls it
    ) as process:
        os.close(theirs)
        reader = Thread(target=_discard, args=(ours,))
        reader.start()
        try:
            yield lambda text: _type(ours, text)
        finally:
            process.kill()
            process.wait()
            reader.join()
            os.close(ours)


def _type(terminal: int, text: str) -> None:
    os.write(terminal, text.encode())


def _discard(terminal: int) -> None:
    """Read the output, or the program would block."""
    try:
        while os.read(terminal, 4096):
            pass
    except OSError:  # the other end is closed
        pass


@pytest.mark.parametrize("shell", SHELLS)
def test_a_queue_with_a_hostile_name_is_one_argument(shell: str, tmp_path: Path, dsn: str, blocking) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"there is no {shell}")
    for name in [*QUEUES.values(), *REFUSED.values(), "--force"]:
        blocking().create_queue(name)
    folder, record = tmp_path / "folder", tmp_path / "record"
    (tmp_path / "bin").mkdir()
    folder.mkdir()
    program = tmp_path / "bin" / "pgqueue"
    program.write_text(RECORDER.format(python=sys.executable, record=str(record)))
    program.chmod(0o755)
    settings = environment(
        PGQUEUE_DSN=dsn,
        PATH=f"{program.parent}:{os.environ['PATH']}",
        TERM="xterm",
        HOME=tmp_path,
        HISTFILE="/dev/null",
    ) | {"LC_ALL": "C.UTF-8"}

    def called() -> list[list[str]]:
        return [json.loads(line) for line in record.read_text().splitlines()] if record.exists() else []

    command, setup = SHELLS[shell]
    with terminal(command, folder, settings) as type_in:
        type_in(f"{setup}; pgqueue ready\n")
        eventually(lambda: called() == [["ready"]])
        for count, (prefix, name) in enumerate(QUEUES.items(), 2):
            type_in(f"pgqueue list {prefix}\t\n")
            eventually(lambda count=count: len(called()) == count)
            assert [word.rstrip() for word in called()[-1]] == ["list", name.rstrip()]
        for prefix in REFUSED:
            type_in(f"pgqueue list {prefix}\t\n")
        type_in("pgqueue end\n")
        eventually(lambda: called()[-1] == ["end"], within=60)
    assert called()[1 + len(QUEUES) : -1] == [["list", prefix] for prefix in REFUSED]
    assert list(folder.iterdir()) == []  # neither `touch` nor a redirection has run


def test_a_word_of_bash_is_the_name(tmp_path: Path) -> None:
    for name in QUEUES.values():
        word = completion.printable.shell_word(name)
        assert word is not None
        assert shlex.split(word) == [name]
