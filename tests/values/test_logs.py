"""A log that raises: its callers go on, and stderr has the error."""

from __future__ import annotations

import ast
import io
import logging
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import pgqueue
from pgqueue._values.logs import log

HOME = Path(pgqueue.__path__[0])


class Outside(logging.Filter):
    """As a filter that needs a web request."""

    error: BaseException = RuntimeError("outside of a request")

    def filter(self, record: logging.LogRecord) -> bool:
        raise self.error


@pytest.fixture
def outside() -> Iterator[Outside]:
    logging.getLogger("pgqueue").addFilter(outside := Outside())
    yield outside
    logging.getLogger("pgqueue").removeFilter(outside)


def test_a_filter_that_raises_is_told_on_stderr_with_the_message(
    outside: Outside, capsys: pytest.CaptureFixture[str]
) -> None:
    log.warning("task %s failed", 17)
    told = capsys.readouterr().err
    assert "RuntimeError: outside of a request" in told
    assert "Message: 'task %s failed'" in told
    assert "Arguments: (17,)" in told


def test_a_closed_stderr_raises_nothing_either(outside: Outside, monkeypatch: pytest.MonkeyPatch) -> None:
    closed = io.StringIO()
    closed.close()
    monkeypatch.setattr(sys, "stderr", closed)
    log.warning("task %s failed", 17)


def test_an_interrupt_in_a_filter_goes_on(outside: Outside) -> None:
    outside.error = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        log.warning("task %s failed", 17)


def test_arguments_that_do_not_fit_raise_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    log.warning("task %d failed", "x")
    assert "Message: 'task %d failed'" in capsys.readouterr().err


def test_a_record_names_the_line_that_logs(caplog: pytest.LogCaptureFixture) -> None:
    log.warning("one")
    try:
        raise LookupError
    except LookupError:
        log.exception("two", extra={"order": 17})
    one, two = caplog.records
    here = (__file__, "test_a_record_names_the_line_that_logs")
    assert {(record.pathname, record.funcName) for record in (one, two)} == {here}
    assert (two.lineno, two.exc_info and two.exc_info[0]) == (one.lineno + 4, LookupError)
    assert vars(two)["order"] == 17


@pytest.mark.slow
def test_the_package_has_no_other_logger() -> None:
    """Modules import this one."""
    own = [
        (path.relative_to(HOME).as_posix(), ast.unparse(node))
        for path in sorted(HOME.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Assign) and "getLogger" in ast.unparse(node.value)
    ]
    assert own == [
        ("_values/logs.py", "log = Log(logging.getLogger('pgqueue'))"),
        ("monitors/alerts.py", "log = Log(logging.getLogger('pgqueue.alerts'))"),
        ("worker/remote.py", "logger = logging.getLogger(told['name'])"),
    ]
