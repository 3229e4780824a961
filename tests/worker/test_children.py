"""Child processes of a worker: what they return, how they die, are killed and replaced, and that none is left."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from checkout import HELPERS
from dying import alive
from eventually import Stopwatch, eventually, in_time

from pgqueue._calls.take import Taken
from pgqueue.errors import ProcessDied
from pgqueue.worker.children import Children, Recycling
from pgqueue.worker.process import Child
from pgqueue.worker.remote import Failed
from pgqueue.worker.runners import Threads
from pgqueue.worker.runs import Run

pytestmark = pytest.mark.once

ROUNDS = int(os.environ.get("PGQUEUE_TEST_ROUNDS", "10"))


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Children]]:
    """Makes pools of children, and ends them."""
    monkeypatch.syspath_prepend(str(HELPERS))
    made: list[Children] = []

    def one_more(**recycling: Any) -> Children:
        made.append(Children(["isolated"], Recycling(**recycling)))
        return made[-1]

    yield one_more
    for children in made:
        pids = children.pids()
        children.close()
        assert not any(alive(pid) for pid in pids)


@pytest.fixture
def children(make: Callable[..., Children]) -> Children:
    return make()


def new_run(id: int = 1) -> Run:
    task = Taken(id, 1, 0, 0, None, "null", "q")
    return Run(task, time.monotonic(), Threads.__new__(Threads), threading.current_thread())


def call(children: Children, name: str, data: Any = None, run: Run | None = None, **more: Any) -> Any:
    task = {"id": 1, "queue": "q", "attempts": 0, "priority": 0, "token": None}
    return children.run(run or new_run(), {"path": f"isolated:{name}", "data": data, "task": task}, **more)


class Calling(threading.Thread):
    """A call in a thread of its own, as a runner makes it."""

    def __init__(self, children: Children, name: str, data: Any = None) -> None:
        super().__init__()
        self.handling = new_run()
        self.result: Any = None
        self.ended_at = 0.0
        self._call = children, name, data
        self.start()

    def run(self) -> None:
        try:
            self.result = call(*self._call, run=self.handling)
        except Exception as error:
            self.result = error
        self.ended_at = time.monotonic()

    def end(self) -> float:
        """End the run as the watch does. Returns the seconds until the call returned."""
        began, ender = time.monotonic(), self.handling.ender
        assert ender is not None
        ender.end(self.handling)
        self.join(30)
        assert not self.is_alive()
        return self.ended_at - began


@pytest.mark.slow
@pytest.mark.parametrize("data", [None, 7, "x\né", [1, {"a": None}], "x" * 300_000], ids=lambda data: repr(data)[:20])
def test_data_and_results_are_json(children, data):
    assert call(children, "answer", data) == data


@pytest.mark.slow
def test_a_child_serves_one_task_after_another(children):
    assert len({call(children, "pid") for _ in range(5)}) == 1
    assert call(children, "pid") != os.getpid()


@pytest.mark.slow
def test_what_a_child_cannot_import_is_a_failure(children):
    with pytest.raises(Failed, match="has no attribute 'nothing'"):
        call(children, "nothing")
    with pytest.raises(Failed, match="No module named 'not_there'"):
        children.run(new_run(), {"path": "not_there:f", "data": 1, "task": {"id": 1, "queue": "q"}})
    assert call(children, "answer", 1) == 1


@pytest.mark.slow
def test_a_result_that_json_cannot_hold_is_none_and_the_run_knows_why(children):
    run = new_run()
    assert call(children, "not_json", run=run) is None
    assert run.unkept == "$: JSON cannot hold a object"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("data", "kind", "args"),
    [
        ("plain", "builtins.ValueError", ("no such order", 7)),
        ("odd", "isolated.Odd", (3,)),
        ("os", "builtins.FileNotFoundError", (2, "gone")),
        ("leave", "builtins.SystemExit", ("bye",)),
        ("secretive", "builtins.RuntimeError", None),
        ("unknown", "builtins.RuntimeError", None),
    ],
)
def test_an_error_comes_back_with_its_class_and_its_traceback(children, data, kind, args):
    with pytest.raises(Failed) as caught:
        call(children, "fail", data)
    error = caught.value.error
    assert f"{type(error).__module__}.{type(error).__qualname__}" == kind
    assert args is None or error.args == args
    assert "in fail)" in caught.value.text
    assert 'isolated.py", line' in caught.value.traceback
    assert caught.value.traceback in str(error.__cause__)
    if data == "odd":
        assert error.reason == "worn out"  # type: ignore[attr-defined]
    if data == "os":
        assert error.errno == 2  # type: ignore[attr-defined]


@pytest.mark.slow
def test_log_records_come_back(children, caplog):
    with caplog.at_level(logging.INFO):
        call(children, "tell", "order 7")
    first, second = [record for record in caplog.records if record.name == "isolated"]
    assert (first.getMessage(), first.levelname, first.funcName) == ("working on order 7", "WARNING", "tell")
    assert first.order == 7  # type: ignore[attr-defined]
    assert first.process != os.getpid()
    assert "ValueError: ('no such order', 7)" in (second.exc_text or "")


@pytest.mark.slow
def test_the_verbs_of_a_task_are_asked_of_the_worker(children):
    asked: list[Any] = []

    def answers(question: Any) -> Any:
        asked.append(question)
        return [None, "done" if question[0] == "finish" else None]

    assert call(children, "verbs", answers=answers) == [1, "q", 0, "done"]
    assert asked == [["progress", [{"done": 1}], {}], ["touch", [30], {}], ["finish", ["by itself"], {}]]
    with pytest.raises(Failed, match="a task in a process of its own has no 'follow'"):
        call(children, "no_verb")


@pytest.mark.slow
def test_a_soft_limit_while_the_worker_answers_does_not_mix_up_the_answers(children):
    run, asked = new_run(), []

    def answers(question: Any) -> Any:
        asked.append(question[0])
        if question[0] == "touch":
            assert run.ender is not None
            run.ender.soften(run)
            time.sleep(0.3)  # the handler has left its question by then, or soon
        return [None, f"answer to {question[0]}"]

    assert call(children, "ask_softly", run=run, answers=answers) == "answer to finish"
    assert asked == ["touch", "finish"]
    assert call(children, "answer", 1) == 1


@pytest.mark.slow
def test_a_soft_limit_that_comes_too_late_does_not_meet_the_next_handler(children, tmp_path):
    begun = tmp_path / "begun"
    calling = Calling(children, "block_its_loop", str(begun))
    eventually(begun.exists)
    ender = calling.handling.ender
    assert ender is not None
    ender.soften(calling.handling)
    (tmp_path / "begun.go").touch()
    calling.join(30)
    assert calling.result == "blocked"
    assert call(children, "time_out") == "TimeoutError"


@pytest.mark.slow
def test_a_run_that_comes_after_the_end_begins_no_child(children):
    assert call(children, "answer", 1) == 1
    children.close()
    with pytest.raises(ProcessDied, match="before it began"):
        call(children, "answer", 1)


@pytest.mark.slow
def test_a_fork_that_returns_from_a_handler_answers_nothing(children):
    for n in range(5):
        assert call(children, "fork_and_return") == "returned"
        assert call(children, "answer", n) == n
    assert len(children.pids()) == 1


@pytest.mark.slow
def test_a_thread_that_a_handler_left_cannot_settle_the_next_task(children, tmp_path):
    path, asked = str(tmp_path / "path"), []
    call(children, "leave_a_thread", path)
    assert call(children, "meet_the_thread", path, answers=asked.append) == "the handler of this task has returned"
    assert asked == []


# --- the end of a child


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "said"),
    [("segfault", "SIGSEGV"), ("exit", "exit code 3"), ("kill", "SIGKILL"), ("abort", "SIGABRT")],
)
def test_a_child_that_dies_fails_its_task_alone(children, how, said, capfd):
    other = Calling(children, "softly")
    eventually(lambda: isinstance(ender := other.handling.ender, Child) and ender._ready)
    for _ in range(3):
        with pytest.raises(ProcessDied, match=f"the process of the handler .*{said}"):
            call(children, "die", how)
        assert call(children, "answer", 1) == 1
    assert other.is_alive()
    other.end()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["hang", "hang_async", "hang_in_c", "hang_with_a_program", "hang_in_a_fork"])
def test_a_child_that_hangs_is_killed_with_what_it_started(children, tmp_path, name, record_property):
    numbers, rounds = iter(range(1000)), ROUNDS if name in ("hang", "hang_in_c") else 2

    def once() -> float:
        begun = tmp_path / str(next(numbers))
        calling = Calling(children, name, str(begun))
        eventually(lambda: begun.exists() and begun.read_text())
        pids = [int(pid) for pid in begun.read_text().split()]
        assert all(map(alive, pids))
        seconds = calling.end()
        assert isinstance(calling.result, ProcessDied)
        assert "SIGKILL" in str(calling.result)
        eventually(lambda: not any(map(alive, pids)))
        return seconds

    def median() -> float:
        seconds = sorted(once() for _ in range(rounds))
        record_property("seconds", [round(one, 4) for one in seconds])
        return seconds[rounds // 2] if rounds >= 10 else 0.0

    in_time(median, within=0.05)
    assert call(children, "answer", 1) == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", ["softly", "softly_async"])
def test_a_soft_limit_is_raised_in_the_handler(children, name):
    results = []
    for _ in range(3):  # by the same child
        calling = Calling(children, name)
        while calling.is_alive():  # before the handler has begun, it does nothing
            if ender := calling.handling.ender:
                ender.soften(calling.handling)
            calling.join(0.2)
        results.append(calling.result)
    assert "its soft time limit has passed" in results  # and not the error that comes before the handler's `try`
    assert call(children, "answer", 1) == 1


@pytest.mark.slow
def test_a_kill_never_meets_the_next_task(children):
    """The runner has its answer while the watch kills: the next task runs, in that child or in another."""
    for _ in range(2 * ROUNDS):
        run, ended = new_run(), threading.Event()

        def kill(run: Run = run, ended: threading.Event = ended) -> None:
            while not ended.is_set():
                if ender := run.ender:
                    ender.end(run)
                    return

        killer = threading.Thread(target=kill)
        call(children, "answer", 0)  # it is ready
        killer.start()
        try:
            call(children, "answer", 1, run)
        except ProcessDied:
            pass
        finally:
            ended.set()
            killer.join()
        assert call(children, "answer", 2) == 2


@pytest.mark.slow
def test_a_run_that_was_cut_before_it_began_does_not_begin(children):
    run = new_run()
    run.cut = "the worker stops"
    with pytest.raises(ProcessDied, match="ended before it began"):
        call(children, "answer", 1, run)


@pytest.mark.slow
def test_a_child_is_replaced_after_its_tasks(make):
    children = make(tasks=3)
    pids = [call(children, "pid") for _ in range(9)]
    assert [pids.count(pid) for pid in dict.fromkeys(pids)] == [3, 3, 3]
    eventually(lambda: not any(alive(pid) for pid in set(pids) - set(children.pids())))


@pytest.mark.slow
def test_a_child_is_replaced_when_it_holds_too_much_memory(make):
    children = make(memory=200 << 20)
    small = call(children, "grow", 1)
    assert call(children, "grow", 1) == small
    assert call(children, "grow", 250) == small
    assert call(children, "pid") != small


def test_the_limits_of_a_run_begin_when_its_child_is_ready(make):
    """Importing takes time, which is not the handler's."""
    children = make()
    run = new_run()
    run.began -= 100
    before = time.monotonic()
    assert call(children, "answer", 1, run) == 1
    assert run.began > before


@pytest.mark.slow
def test_close_ends_children_that_are_idle(make):
    children = make()
    call(children, "pid")
    (pid,) = children.pids()
    watch = Stopwatch()
    children.close(within=60)  # after which it would kill them
    assert not alive(pid)
    assert watch() < 60


# --- orphans

WORKER = """
    import sys, threading, time
    sys.path[:0] = {here!r}
    from test_children import call, new_run
    from pgqueue.worker.children import Children
    children = Children(["isolated"])
    threading.Thread(target=call, args=(children, sys.argv[1], sys.argv[2])).start()
    call(children, "answer", 1)
    time.sleep(60)
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["hang", "hang_in_c"])
def test_children_end_when_their_worker_is_killed(tmp_path, name):
    begun = tmp_path / "begun"
    program = textwrap.dedent(WORKER.format(here=[str(HELPERS), str(Path(__file__).parent)]))
    worker = subprocess.Popen([sys.executable, "-c", program, name, str(begun)])
    try:
        eventually(lambda: begun.exists() and begun.read_text())
        pid = int(begun.read_text())
        children = [
            int(one) for one in subprocess.check_output(["ps", "-o", "pid=", "--ppid", str(worker.pid)]).split()
        ]
        assert pid in children
    finally:
        worker.send_signal(signal.SIGKILL)
        worker.wait()
    eventually(lambda: not any(map(alive, children)))


@pytest.mark.slow
def test_children_end_where_the_kernel_does_not_end_them(monkeypatch, tmp_path):
    """A thread of the child sees the end of the socket."""
    monkeypatch.syspath_prepend(str(HELPERS))
    child = Child(["isolated"])
    child._wait_for("ready", lambda asked: None)
    begun = tmp_path / "begun"
    task = {"id": 1, "queue": "q"}
    child._frames.send({"order": {"path": "isolated:hang", "data": str(begun), "task": task}, "number": 1})
    eventually(lambda: begun.exists() and begun.read_text())
    child._frames.socket.close()
    assert child.process.wait(30) == -signal.SIGKILL
    child.reap(0)
