"""The ledger of the fault rig finds what it is there for: each kind of violation, planted into journals by hand.

Each case has a twin beside it that is legal, so a rule that cries at everything fails as well.
"""

from __future__ import annotations

import sys
from pathlib import Path

from checkout import CHECKOUT

sys.path.append(str(CHECKOUT))  # behind everything else: pgqueue stays the installed one

import pytest

from faults.journal import Journal, Life, last_step, parse
from faults.ledger import LATER, Tables, Violation, Window, prove
from faults.report import rows, table

BROKEN = Window("restart", 2.0, 3.0, frozenset({"takes", "locks"}))
PROMOTED = Window("failover", 2.0, 3.0, frozenset({"takes", "locks", "commits"}))
NO_EXCUSE = Window("lock-table", 2.0, 3.0)


def life(name: str, text: str, *, began: float = 0.0, killed: float | None = None, number: int = 0) -> Life:
    """A life from its journal, with spaces for tabs. A field with spaces in it has underscores there."""
    lines = ["\t".join(line.split()).replace("_", " ") for line in text.strip().splitlines()]
    ended = float("inf") if killed is None else killed
    return Life(name, number, began, ended, killed is not None, parse("\n".join([*lines, ""])))


def found(*lives: Life, windows: tuple[Window, ...] = (), tables: Tables | None = None) -> list[str]:
    """The rules that were violated. These processes end soon after their fault, so none is back."""
    rules = [violation.rule for violation in prove(lives, windows, tables or Tables()).violations]
    return [rule for rule in rules if rule != "not back"]


PUT = "1.0 putting q - a\n 1.1 put a 7\n"
TAKER = "1.2 taking\n 1.3 took a 7 100\n 1.4 acking a\n 1.5 acked a"


def test_an_orderly_life_is_no_violation() -> None:
    assert found(life("put", PUT), life("take", TAKER)) == []


def test_a_lost_put() -> None:
    assert found(life("put", PUT)) == ["lost"]
    assert found(life("put", PUT), life("take", "1.2 taking\n 1.3 took a 7 100", killed=1.4)) == ["lost"]
    assert found(life("put", PUT), windows=(BROKEN,)) == ["lost"]


def test_a_put_that_is_not_lost() -> None:
    assert found(life("put", "1.0 putting q - a\n 1.1 unput a ConnectionLost")) == []
    assert found(life("put", PUT), windows=(PROMOTED,)) == []  # an asynchronous standby lacked it
    for end in ("", "\n 1.5 unsure a ConnectionLost", "\n 1.5 unsure a ConnectionLost\n 1.6 refused a TaskNotFound"):
        taker = life("take", f"1.2 taking\n 1.3 took a 7 100\n 1.4 acking a{end}", killed=1.7)
        assert found(life("put", PUT), taker) == []


def test_what_was_acked_runs_again() -> None:
    again = "2.0 taking\n 2.1 took a 7 101"
    assert found(life("put", PUT), life("take", TAKER), life("other", again)) == ["ran again"]
    twice = "1.0 taking\n 2.1 took a 7 101\n 2.2 acking a\n 2.3 acked a"
    assert found(life("put", PUT), life("take", TAKER), life("other", twice)) == ["ran again"]
    assert found(life("put", PUT), life("take", TAKER), life("other", again), windows=(PROMOTED,)) == []


def test_what_was_not_acked_may_run_again() -> None:
    dead = life("take", "1.2 taking\n 1.3 took a 7 100", killed=1.6)
    other = life("other", "1.5 taking\n 1.9 took a 7 101\n 2.0 acking a\n 2.1 acked a")
    assert found(life("put", PUT), dead, other) == []
    unsure = life("take", "1.2 taking\n 1.3 took a 7 100\n 1.4 acking a\n 1.5 unsure a ConnectionLost", killed=1.6)
    assert found(life("put", PUT), unsure, other) == []


def test_two_holders() -> None:
    first = life("take", "1.2 taking\n 1.3 took a 7 100\n 2.5 acking a\n 2.6 refused a TaskTakenByOther")
    second = life("other", "1.2 taking\n 2.1 took a 7 101\n 2.2 acking a\n 2.3 acked a")
    lives = life("put", PUT), first, second
    assert found(*lives) == ["two holders", "taken away"]
    assert found(*lives, windows=(NO_EXCUSE,)) == ["two holders", "taken away"]
    assert found(*lives, windows=(BROKEN,)) == []  # the first one's session was lost, and its ack was refused
    others = Window("stop", 2.0, 3.0, frozenset({"takes"}), frozenset({"put"}))
    assert found(*lives, windows=(others,)) == ["two holders", "taken away"]


def test_an_ack_that_is_accepted_after_another_took() -> None:
    first = life("take", "1.2 taking\n 1.3 took a 7 100\n 2.5 acking a\n 2.6 acked a")
    second = life("other", "1.9 taking\n 2.1 took a 7 101", killed=2.2)
    assert found(life("put", PUT), first, second, windows=(BROKEN,)) == ["ran again"]


def test_a_worker_that_handles_a_task_twice_at_once() -> None:
    first = life("worker", "1.3 took a 7 100\n 2.5 handled a")
    second = life("worker", "2.1 took a 7 101\n 2.2 handled a", number=1)
    assert found(life("put", PUT), first, second) == ["two holders"]


LANES = "1.0 putting q lane a\n 1.1 put a 7\n 1.2 putting q lane b\n 1.3 put b 8\n"


def test_a_lane_out_of_order() -> None:
    a = "1.5 taking\n 1.6 took a 7 100\n 1.7 acking a\n 1.8 acked a"
    b = "1.4 taking\n 1.5 took b 8 101\n 1.55 acking b\n 1.56 acked b"
    assert found(life("put", LANES), life("take", a), life("other", b)) == ["lane out of order"]
    late = b.replace("1.4 ", "1.71 ").replace("1.5 ", "1.9 ").replace("1.55", "2.0").replace("1.56", "2.1")
    assert found(life("put", LANES), life("take", a), life("other", late)) == []


def test_a_lane_whose_first_task_is_never_done() -> None:
    b = life("take", "1.4 taking\n 1.5 took b 8 101\n 1.55 acking b\n 1.56 acked b")
    assert found(life("put", LANES), b, tables=Tables(left={"a": "D"})) == ["lane out of order", "stuck"]


HOLD = "1.0 locking l\n 1.1 locked l 5\n 1.4 unlocking l\n 1.5 unlocked l"


def test_two_holders_of_a_lock() -> None:
    other = "1.0 locking l\n 1.2 locked l 6\n 1.3 unlocking l\n 1.6 unlocked l"
    assert found(life("one", HOLD), life("two", other)) == ["two holders"]
    assert found(life("one", HOLD), life("two", other), windows=(Window("cut", 1.0, 2.0, BROKEN.excuses),)) == [
        "two holders"  # both were released in order: neither was lost
    ]
    after = other.replace("1.2", "1.45").replace("1.3", "1.47")
    assert found(life("one", HOLD), life("two", after)) == []


def test_a_lock_that_is_lost() -> None:
    lost = life("one", "1.0 locking l\n 1.1 locked l 5\n 2.4 lost l")
    other = life("two", "1.0 locking l\n 2.2 locked l 6\n 2.3 unlocking l\n 2.6 unlocked l")
    assert found(lost) == ["lock lost"]
    assert found(lost, windows=(NO_EXCUSE,)) == ["lock lost"]
    assert found(lost, other, windows=(BROKEN,)) == []
    assert found(lost, other) == ["two holders", "lock lost"]


def test_two_leaders() -> None:
    first = life("one", "1.0 locking office\n 1.1 locked office 5\n 1.4 unlocking office")
    second = life("two", "1.0 locking office\n 1.2 locked office 6")
    assert found(first, second) == ["two holders"]
    assert found(life("one", "1.0 locking office\n 1.1 locked office 5", killed=1.15), second) == []


@pytest.mark.parametrize("fence", [4, 5])
def test_a_fence_that_does_not_rise(fence: int) -> None:
    in_turn = f"1.0 locking l\n 1.6 locked l {fence}\n 1.7 unlocking l\n 1.8 unlocked l"
    assert found(life("one", HOLD), life("two", in_turn)) == ["fence"]
    asked_later = f"1.55 locking l\n 1.6 locked l {fence}"
    assert found(life("one", HOLD), life("two", asked_later)) == ["fence"]
    assert found(life("one", HOLD), life("two", in_turn.replace(f"l {fence}", "l 6"))) == []


POSTS = "1.0 posting p1\n 1.1 posted p1\n 1.2 posting p2\n 1.3 posted p2\n 1.4 posting p3\n 1.5 posted p3"


def test_a_payload_that_is_not_heard() -> None:
    assert found(life("post", POSTS), life("hear", "0.5 listening\n 1.2 heard p1\n 1.6 heard p3")) == ["not heard"]
    for legal in ("1.2 heard p1\n 1.55 gap lost\n 1.6 heard p3", "1.2 heard p1\n 1.4 heard p2\n 1.6 heard p3"):
        assert found(life("post", POSTS), life("hear", f"0.5 listening\n {legal}")) == []
    unsure = POSTS.replace("1.3 posted p2", "1.3 unposted p2 ConnectionLost")
    assert found(life("post", unsure), life("hear", "0.5 listening\n 1.2 heard p1\n 1.6 heard p3")) == []


def test_payloads_out_of_order() -> None:
    heard = life("hear", "0.5 listening\n 1.2 heard p1\n 1.4 heard p2\n 1.45 heard p1")
    assert found(life("post", POSTS), heard) == ["order"]


def test_what_is_left_at_the_end() -> None:
    assert found(life("put", PUT), tables=Tables(left={"a": "R"})) == ["stuck"]
    assert found(life("put", PUT), tables=Tables(left={"a": LATER})) == ["stuck"]
    ahead = Window("clock-forward", 0.0, 1.0, frozenset({"delays"}))
    assert found(life("put", PUT), tables=Tables(left={"a": LATER}), windows=(ahead,)) == []
    assert found(tables=Tables(rows={"pgqueue.take": 1, "pgqueue.session": 0})) == ["stuck"]
    assert found(tables=Tables(counted={"total of q": (3, 2), "taken of q": (1, 1)})) == ["counter"]
    assert found(tables=Tables(other=[Violation(1.0, "ended", "exit code 1")])) == ["ended"]


def test_a_process_that_does_not_come_back() -> None:
    away = life("put", "1.0 putting q - a\n 1.1 put a 7\n 9.0 putting q - b\n 9.5 put b 8")
    left = Tables(left={"a": "R", "b": "R"})
    proof = prove([away], [NO_EXCUSE], left, bound=5)
    assert [violation.rule for violation in proof.violations if violation.rule != "stuck"] == ["not back"]
    assert proof.windows[0].back == pytest.approx(6.5)
    assert "not back" not in [violation.rule for violation in prove([away], [NO_EXCUSE], left, bound=7).violations]
    never = prove([life("put", PUT)], [NO_EXCUSE], Tables(left={"a": "R"}))
    assert "not back" in [violation.rule for violation in never.violations]
    assert "never" in table([never])


def test_violations_are_counted_for_their_fault() -> None:
    first = Window("kill", 0.5, 0.6, frozenset(), frozenset({"nobody"}))
    later = Window("cut", 5.0, 5.1, frozenset(), frozenset({"nobody"}))
    proof = prove([life("put", PUT)], [first, later], Tables())
    assert [row[:4] for row in rows(proof)] == [("kill", "1", "0", "1"), ("cut", "1", "0", "0")]


def test_a_journal_outlives_its_process_up_to_its_last_whole_line(tmp_path: Path) -> None:
    path = tmp_path / "put.journal"
    journal = Journal(path)
    journal.write("putting", "q", "-", "a")
    journal.write("put", "a", 7)
    journal.write("error", "ConnectionLost", "two\nlines\tand a tab")
    with path.open("a") as file:
        file.write("12.5\tputti")  # no whole line: not from os.write(), but from a disk that was full
    lines = parse(path.read_text())
    assert [line.event for line in lines] == ["putting", "put", "error"]
    assert lines[2].fields == ("ConnectionLost", "two lines and a tab")
    assert last_step(path) == lines[1].at
    assert last_step(tmp_path / "none") == 0.0
    for _ in range(3):  # TAIL begins within a line, and has fewer characters than bytes
        journal.write("error", "ConnectionLost", "\u20ac" * 1000)
    journal.write("put", "b", 8)
    assert last_step(path) == parse(path.read_text().replace("12.5\tputti", ""))[-1].at
