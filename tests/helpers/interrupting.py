"""Ctrl-C at each place of a call at which CPython handles a signal.

Theory of operation
-------------------
CPython runs the handler of a signal in the main thread, and not between any two steps: at the beginning of a function
of Python, at a jump backward, and when a call of a function of C has returned. All else is done as a whole: the two
halves of `a, b = b, a`, a return with the assignment of what was returned, and so on. `with lock:` of a lock in C rests
on this, and so does pgqueue. A trace function that raises before a line, or before an instruction, also raises where no
signal can: for example when a block has ended, and before its lock is released. What it finds there is no defect, and
nothing in Python can mend it.

So here nothing is raised. A trace function looks on until the instruction with a given number is about to run, and
leaves then a SIGINT pending, as the operating system does. CPython decides where its handler runs, which raises
KeyboardInterrupt. The trace function must not meet the signal itself: it is left pending by an operator, after which
CPython does not look for signals, and nothing is traced from then on. (At the beginning of a function CPython 3.12
would call the trace function first, and look for signals in that one.)

What can neither look for signals nor enter or leave a function has no number, since it leads to the same place as the
next instruction. All code of Python that the thread runs counts, that of the libraries too. The walk ends with the
first run that ends before its number. A run may take another way than the one before, for example when a statement is
prepared; callers bring about each way by itself, and count the places.

Python's logging is left out. An interrupt between `acquire()` and the `try` behind it in Handler.handle leaves the
handler locked, in any program, and the other threads that log then wait for ever: psycopg's pool logs a connection that
it discards.

In a finaliser CPython drops the KeyboardInterrupt. The call then goes on, as if there had been none.

A second SIGINT meets the clean-up after the first one. The handler of the first, before it raises, has the frames that
it interrupts traced again, up to the next number. If the call ends first, a SIGINT may come yet: with the exception its
frames are freed, and finalisers run. That one counts for nothing, and raises nothing.
"""

from __future__ import annotations

import _thread
import dis
import itertools
import logging
import signal
import sys
from collections.abc import Callable, Iterator
from functools import cache
from types import CodeType, FrameType
from typing import Any, NamedTuple

#: They have no number.
QUIET = {
    *("CACHE", "COPY", "COPY_FREE_VARS", "EXTENDED_ARG", "IS_OP", "JUMP_FORWARD", "KW_NAMES", "LOAD_CLOSURE"),
    *("LOAD_CONST", "LOAD_DEREF", "LOAD_FAST", "LOAD_GLOBAL", "MAKE_CELL", "MAKE_FUNCTION", "NOP", "POP_EXCEPT"),
    *("POP_JUMP_FORWARD_IF_FALSE", "POP_JUMP_FORWARD_IF_NONE", "POP_JUMP_FORWARD_IF_NOT_NONE"),
    *("POP_JUMP_FORWARD_IF_TRUE", "PRECALL", "PUSH_EXC_INFO", "PUSH_NULL", "STORE_DEREF", "STORE_FAST"),
    *("SWAP",),
}


class Place(NamedTuple):
    """Where KeyboardInterrupt came out."""

    file: str
    function: str
    line: int
    offset: int


class _Pending:
    """`-PENDING` leaves a SIGINT pending. A call would handle it at once."""

    __neg__ = staticmethod(_thread.interrupt_main)


PENDING = _Pending()


@cache
def numbered(code: CodeType) -> frozenset[int]:
    """The offsets of the instructions that count."""
    return frozenset(one.offset for one in dis.get_instructions(code) if one.opname not in QUIET)


def logs(frame: FrameType | None) -> bool:
    """Whether a frame is one of logging's, or was called from there."""
    while frame is not None and frame.f_code.co_filename not in (logging.__file__, __file__):
        frame = frame.f_back
    return frame is not None and frame.f_code.co_filename == logging.__file__


def interrupted(work: Callable[[], object], number: int) -> Place | None:
    """Call `work` with a SIGINT before its instruction `number`. Returns where it came out; None: there is no such one.

    To be called in the main thread.
    """
    places = interrupts(work, number)
    return places[0] if places else None


def interrupts(work: Callable[[], object], *numbers: int, kept: list[KeyboardInterrupt] | None = None) -> list[Place]:
    """Call `work` with several SIGINTs. Returns where they came out; the last ones are missing if `work` ended before.

    To be called in the main thread.

    Args:
        numbers: before which instruction the first one comes, counted from the beginning; and each other one, counted
            from where the one before it came out. With 0 that is the first instruction at which a signal is handled.
        kept: gets the KeyboardInterrupt that `work` has raised. It refers to the frames, as in an interactive
            interpreter, where it lasts until the next error.
    """
    left, after = numbers[0], list(numbers[1:])
    base, places = sys._getframe(), list[Place]()
    over = False

    def watch(frame: FrameType, event: str = "call", _: Any = None) -> Any:
        if logs(frame):
            return None
        frame.f_trace_lines, frame.f_trace_opcodes, frame.f_trace = False, True, reached
        return reached

    def reached(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal left
        if event == "opcode" and frame.f_lasti in numbered(frame.f_code):
            left -= 1
            if left < 0:
                sys.settrace(None)
                _ = -PENDING  # type: ignore[operator]
                return None
        return reached

    def handler(number: int, frame: FrameType | None) -> None:
        nonlocal left
        assert frame is not None
        if over:
            return
        places.append(Place(frame.f_code.co_filename, frame.f_code.co_name, frame.f_lineno, frame.f_lasti))
        if after:
            while frame is not None and frame is not base:
                watch(frame)
                frame = frame.f_back
            left, _ = after.pop(0), sys.settrace(watch)  # no function is called from here on
        raise KeyboardInterrupt

    before = sys.gettrace(), signal.signal(signal.SIGINT, handler), sys.unraisablehook
    sys.unraisablehook = lambda unraisable: None
    sys._getframe().f_trace_opcodes = True  # since Python 3.12 this has to be so before settrace()
    try:
        try:
            sys.settrace(watch)
            work()
        finally:
            sys.settrace(before[0])
    except KeyboardInterrupt as interrupt:
        over = True
        if kept is not None:
            kept.append(interrupt)
    finally:
        sys.settrace(before[0])  # again: the handler may have run at the end of the one above
        sys.unraisablehook = before[2]
        signal.signal(signal.SIGINT, before[1])
    return places


def walk(work: Callable[[], object], first: int = 0, step: int = 1) -> Iterator[Place]:
    """Call `work` again and again, interrupted each time at another of its places, until it ends before."""
    for number in itertools.count(first, step):
        if (place := interrupted(work, number)) is None:
            return
        yield place
