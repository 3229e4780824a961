"""Lines, tables and progress: on a terminal, in a pipe, without colour, without Rich."""

from __future__ import annotations

import io
import re
from datetime import UTC, datetime

import pytest
from eventually import eventually
from hostile import STRINGS, obeyed

from pgqueue.cli import printing
from pgqueue.terminal import Column, Console, Progress, Table, ago, drawn, duration, figure
from pgqueue.terminal import console as consoles
from pgqueue.terminal.progress import WINDOW, Pace

pytestmark = pytest.mark.once


class Screen(io.StringIO):
    """A stream that is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> Screen:
    """Standard output and error as a terminal with 60 columns and 16 colours."""
    found = Screen()
    monkeypatch.setattr(Console, "stream", property(lambda self: found))  # pytest sets sys.stdout for each phase anew
    for name, value in {"TERM": "xterm", "COLUMNS": "60", "LINES": "20"}.items():
        monkeypatch.setenv(name, value)
    for name in ("NO_COLOR", "FORCE_COLOR", "COLORTERM", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    return found


def without_colour(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


# --- words


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (0.4, "< 1 s"),
        (59.4, "59 s"),
        (60, "1 min"),
        (125, "2 min 5 s"),
        (200, "3 min"),
        (3600, "1 h"),
        (8000, "2 h 13 min"),
        (86400 * 2 + 3600, "2 d 1 h"),
        (86400 * 40, "40 d"),
    ],
)
def test_a_duration(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_a_time_ago_and_a_time_to_come() -> None:
    assert ago(200) == "3 min ago"
    assert ago(-86400 * 4) == "in 4 d"


def test_a_figure() -> None:
    assert [figure(number) for number in (0, 1.24, 12.3, 1234567.8, 3.0)] == ["0", "1.2", "12", "1,234,568", "3"]


# --- lines


def test_a_line_has_its_style_only_where_there_is_colour(screen: Screen, monkeypatch: pytest.MonkeyPatch) -> None:
    Console().say("done", "bold red")
    monkeypatch.setenv("NO_COLOR", "1")
    Console().say("done", "bold red")
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("TERM", "dumb")
    Console(err=True).say("done", "bold red")
    assert screen.getvalue() == "\x1b[1;31mdone\x1b[0m\ndone\ndone\n"


def test_a_line_without_a_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """After `>&-`."""
    monkeypatch.setattr("sys.stdout", None)
    Console().say("unread")
    assert not Console().terminal


# --- tables


WIDE = Table(
    [
        Column("QUEUE", folds=True),
        Column("READY", style=lambda number: "green" if number else "dim"),
        Column("DONE", spare=2),
        Column("A LONG HEADING", spare=1),
        Column("ERROR", spare=3, folds=True),
    ],
    [
        ["mail", 5, 1234567, "x" * 14, "it failed " * 8],
        ["reports", 0, None, "y", None],
    ],
)


def test_a_table_that_is_not_on_a_terminal_is_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout", io.StringIO())
    lines = drawn(WIDE, Console())
    assert lines == WIDE.plain()
    assert lines[0].split() == ["QUEUE", "READY", "DONE", "A", "LONG", "HEADING", "ERROR"]
    assert lines[1].endswith(("it failed " * 8).rstrip())
    assert lines[2] == "reports      0        -  y               -"


@pytest.mark.parametrize(
    ("columns", "missing"), [(33, "DONE, ERROR"), (45, "ERROR"), (60, None), (80, None), (140, None)]
)
def test_a_table_fits_and_keeps_every_word(
    screen: Screen, monkeypatch: pytest.MonkeyPatch, columns: int, missing: str | None
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    lines = [without_colour(line) for line in drawn(WIDE, Console())]
    assert max(map(len, lines)) <= columns
    end = next((n for n, line in enumerate(lines) if line.startswith("Too narrow")), len(lines))
    table = lines[:end]
    if missing is None:
        assert lines == table
        assert " ".join(lines).count("failed") == 8
    else:
        assert " ".join(lines[end:]) == f"Too narrow for {missing}: --json shows all."
        assert not any(heading in table[0] for heading in missing.split(", "))


@pytest.mark.parametrize("columns", range(40, 80))
def test_a_column_that_does_not_fold_keeps_each_character(
    screen: Screen, monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    """Only QUEUE may fold, and is hardly wider than the next one when there is not much room."""
    headings = [
        Column("QUEUE", folds=True),
        Column("AT"),
        *(Column(name, spare=1) for name in ("PUTS", "DONE", "READY")),
    ]
    table = Table(headings, [["pictures-" * 5, "2030-01-31 08:00:00", 1_234_567, 12_345, 123_456]])
    monkeypatch.setenv("COLUMNS", str(columns))
    heading, first, *_ = map(without_colour, drawn(table, Console()))
    assert len(heading.split()) == len(first.split()) - 1  # the time is two words
    assert set(heading.split()) <= {column.heading for column in headings}
    assert set(first.split()[1:]) <= {"2030-01-31", "08:00:00", "1234567", "12345", "123456"}


def test_a_terminal_that_is_too_narrow_for_anything_wraps_the_plain_lines(
    screen: Screen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "9")
    assert drawn(WIDE, Console()) == WIDE.plain()


def test_without_rich_there_are_plain_lines(screen: Screen, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consoles, "has_rich", lambda: False)
    assert not Console().live
    assert drawn(WIDE, Console()) == WIDE.plain()


@pytest.mark.parametrize("settings", [{"NO_COLOR": "1"}, {"TERM": "dumb"}], ids=str)
def test_a_table_without_colour_still_fits(
    screen: Screen, monkeypatch: pytest.MonkeyPatch, settings: dict[str, str]
) -> None:
    for name, value in {"COLUMNS": "45", **settings}.items():
        monkeypatch.setenv(name, value)
    lines = drawn(WIDE, Console())
    assert not any("\x1b" in line for line in lines)
    assert any(line.startswith("Too narrow for") for line in lines)


@pytest.mark.parametrize("text", [*STRINGS.values(), "[red]x[/red] :smile: [link=x]", "[/]"])
def test_a_table_shows_what_strangers_set_as_it_is(screen: Screen, text: str) -> None:
    lines = drawn(Table([Column("NAME", folds=True), Column("N")], [[text, 1]]), Console())
    assert obeyed("".join(map(without_colour, lines))) == []
    if text.startswith("["):
        assert text in lines[1]


# --- progress


def test_the_pace_is_that_of_late() -> None:
    pace = Pace(0.0)
    assert (pace.rate(), pace.left()) == (None, None)
    pace.see(WINDOW, 1500, 0.15)
    assert pace.rate() == pytest.approx(100)
    assert pace.left() == pytest.approx(85)
    for n in range(1, 16):
        pace.see(WINDOW + n, 1500 + 10 * n, 0.15 + 0.001 * n)
    assert pace.rate() == pytest.approx(10)
    assert pace.left() == pytest.approx((1 - 0.165) / 0.001)


def test_a_bar_shows_the_rate_and_what_is_left_and_goes_away(screen: Screen) -> None:
    with Progress("put", 1000, after=0.0) as progress:
        progress.show(250, remark="[red]12 queued[/red]")
        eventually(lambda: "250 of 1,000 tasks  25%" in without_colour(screen.getvalue()))
        progress.note("a [bold]line[/bold]")
    said = without_colour(screen.getvalue())
    assert "/s" in said
    assert "left" in said
    assert "[red]12" in said
    assert "a [bold]line[/bold]\n" in said
    assert said.rstrip("\r").endswith(("\x1b[2K", "\x1b[?25h"))  # the bar was erased, and the cursor is visible


def test_a_call_that_ends_soon_shows_nothing(screen: Screen) -> None:
    with Progress("put", 1000, after=30.0) as progress:
        progress.show(250)
    assert screen.getvalue() == ""


def test_a_dumb_terminal_has_plain_lines(screen: Screen, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    with Progress("put", 4, after=0.0, plain=0.01) as progress:
        progress.show(1)
        eventually(lambda: "put: 1 of 4 tasks  25%" in screen.getvalue())
        progress.show(4)
        eventually(lambda: "put: 4 of 4 tasks  100%" in screen.getvalue())
    assert "\x1b" not in screen.getvalue()
    assert "\r" not in screen.getvalue()


def test_no_progress_in_a_pipe_unless_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.StringIO()
    monkeypatch.setattr("sys.stderr", out)
    with Progress("put", 4, after=0.0) as progress:
        assert progress._thread is None
    with Progress("put", 4, after=0.0, plain=30.0) as progress:
        eventually(lambda: "put: 0 of 4 tasks" in out.getvalue())


def test_a_column_that_is_only_named_is_folded_and_its_ids_are_not(screen: Screen) -> None:
    """As the commands name most of their columns."""
    rows = [(1234567, "a queue with a name of many words", "expired", datetime(2030, 1, 31, tzinfo=UTC))]
    lines = [without_colour(line) for line in printing.table(("ID", "QUEUE", "REASON", "TIME"), rows * 2)]
    assert max(map(len, lines)) <= 60
    assert "1234567" in lines[1]
    assert " ".join(lines).count("words") == 2
