"""What type checkers say about puts: small programs, checked by mypy and pyright, with the lines that they must refuse.

A line with `# wrong` has to be refused, all others have to pass. pyright is a program for Node.js; without that its
tests are skipped.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from checkout import CHECKOUT

import pgqueue

LIMIT = 280  # seconds: without a cache mypy reads the whole package

pytestmark = [pytest.mark.once, pytest.mark.slow, pytest.mark.timeout(LIMIT + 20)]

PROGRAM = """
from datetime import datetime, timedelta

from pgqueue import AsyncClient, AsyncTask, Client, Job, Put, Rate, Task

client = Client()
other = AsyncClient()


class Order:
    price: int = 1


@client.job(queue="mail", timeout=30, keep_result=timedelta(hours=1))
def send(to: str, order: Order, at: datetime | None = None) -> str:
    return to


@other.job("mail")
async def resize(image: int, *, width: int = 100) -> bytes:
    return b""


@client.job("mail")
def with_task(task: Task, to: str) -> None: ...


@other.job("mail")
async def with_async_task(task: AsyncTask, to: str) -> None: ...


@client.job("mail", concurrency=5, rate=Rate(100, per=timedelta(minutes=1)), limit_by="to", unique_for=60)
def limited(to: str) -> None: ...


@client.job("mail")
def anything(data: object) -> None: ...


def good(task: Task) -> None:
    put: Task = send.put("ada", Order())
    send.put("ada", Order(), datetime.now())
    send.put(to="ada", order=Order(), at=None)
    text: str = send("ada", Order())
    send.options(delay=timedelta(minutes=5), key="k", attempts=3).put("ada", order=Order())
    made: Put = send.prepare("ada", Order())
    task.ack(put=[made])
    after = limited.options(after=[put, 7], on_failure="run", unique_for=None).put("ada")
    with client.batch(limited.prepare("ada"), name="all") as batch:
        send.options(batch=batch, unique_data=True).put("ada", order=Order())
        limited.options(after=after, batch=batch).put_many([("ada",)])
    ids: list[int] = send.put_many([("ada", Order()), {"to": "bob", "order": Order()}])
    resize.put(1, width=3)
    with_task.put("ada")
    with_task(task, "ada")
    anything.put(3)
    named: Job[..., str] = send
    print(put, text, ids, named.name)


async def good_async() -> None:
    task: AsyncTask = await send.aput("ada", order=Order())
    await resize.options(priority=1).aput(image=1)
    await with_async_task.aput("ada")
    image: bytes = await resize(1)
    print(task, image)


def bad() -> None:
    send.put("ada")  # wrong
    send.put(1, Order())  # wrong
    send.put("ada", 3)  # wrong
    send.put("ada", Order(), when=None)  # wrong
    send.put("ada", Order(), None, 1)  # wrong
    send.put(to="ada", order="x")  # wrong
    send.options(delay=1).put("ada", "x")  # wrong
    send.options(colour=1)  # wrong
    send.prepare(Order(), "ada")  # wrong
    resize.put(1, 3)  # wrong
    with_task.put()  # wrong
    with_task.put(1)  # wrong
    number: int = send("ada", Order())  # wrong
    client.job(retry=3)  # wrong
    client.job(colour=3)  # wrong
    client.job(rate="100/m")  # wrong
    client.job(unique_data=3)  # wrong
    client.job_defaults(concurrency=3)  # wrong
    send.options(on_failure="never")  # wrong
    limited.options(after=7).put(7)  # wrong
    limited.options(after=7.5)  # wrong
    print(number)


async def bad_async() -> None:
    await send.aput("ada", "x")  # wrong
    await with_async_task.aput(1)  # wrong
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    return path


def wrong() -> set[int]:
    return {number for number, line in enumerate(PROGRAM.splitlines(), 1) if line.endswith("# wrong")}


def refused(output: str, pattern: str) -> set[int]:
    return {int(number) for number in re.findall(pattern, output, re.MULTILINE)}


def run(*command: str | Path, cwd: Path) -> str:
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=LIMIT, check=False).stdout


def test_mypy_refuses_wrong_arguments_and_no_others(program: Path) -> None:
    pytest.importorskip("mypy")
    mypy = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", f"--cache-dir={CHECKOUT / '.mypy_cache'}"]
    output = run(*mypy, program, cwd=program.parent)
    assert refused(output, r"^program\.py:(\d+): error:") == wrong(), output


def test_pyright_refuses_wrong_arguments_and_no_others(program: Path, pyright: Callable[..., str]) -> None:
    output = pyright(program)
    assert refused(output, r"program\.py:(\d+):\d+ - error:") == wrong(), output


@pytest.fixture
def pyright(tmp_path: Path) -> Callable[..., str]:
    """Runs pyright, strict. Its package from PyPI fetches the program itself at its first run."""
    pytest.importorskip("pyright")
    if shutil.which("node") is None:
        pytest.skip("pyright needs Node.js at run time")
    settings = f'{{"typeCheckingMode": "strict", "extraPaths": ["{Path(pgqueue.__path__[0]).parent}"]}}'
    (tmp_path / "pyrightconfig.json").write_text(settings)
    version = subprocess.run(
        [sys.executable, "-m", "pyright", "--version"], capture_output=True, text=True, timeout=LIMIT, check=False
    )
    if version.returncode:
        pytest.skip(f"pyright cannot run here: {version.stderr.strip()[-200:]}")
    return lambda path: run(sys.executable, "-m", "pyright", "--pythonpath", sys.executable, path, cwd=tmp_path)
