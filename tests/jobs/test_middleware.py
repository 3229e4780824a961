"""Middleware as the functions around a put and a run: their order, their errors, and both kinds of code."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any

import pytest

from pgqueue.jobs.middleware import Order, Running, around_aput, around_arun, around_put, around_run, checked


class Noting:
    """Writes down when its context managers are entered and left, and with which exception."""

    def __init__(self, name: str, log: list[str]) -> None:
        self.name = name
        self.log = log

    @contextmanager
    def put(self, order: Order) -> Iterator[None]:
        order.headers[self.name] = "was here"
        with self.noted("put"):
            yield

    @contextmanager
    def run(self, run: Running) -> Iterator[None]:
        with self.noted("run"):
            yield

    @contextmanager
    def noted(self, what: str) -> Iterator[None]:
        self.log.append(f"{self.name} {what}")
        try:
            yield
        except BaseException as error:
            self.log.append(f"{self.name} {type(error).__name__}")
            raise
        self.log.append(f"{self.name} ends")


class NotingAsync(Noting):
    @asynccontextmanager
    async def aput(self, order: Order) -> AsyncIterator[None]:
        with self.noted("aput"):
            yield

    @asynccontextmanager
    async def arun(self, run: Running) -> AsyncIterator[None]:
        with self.noted("arun"):
            yield


class OnlyAsync:
    @asynccontextmanager
    async def arun(self, run: Running) -> AsyncIterator[None]:
        yield

    @asynccontextmanager
    async def aput(self, order: Order) -> AsyncIterator[None]:
        yield


class Failing:
    """Raises before what it surrounds, or after it."""

    def __init__(self, after: bool) -> None:
        self.after = after

    @contextmanager
    def put(self, order: Order) -> Iterator[None]:
        if self.after:
            yield
        raise LookupError("middleware")

    run = put


class Suppressing:
    @contextmanager
    def run(self, run: Running) -> Iterator[None]:
        with suppress(ZeroDivisionError):
            yield

    put = run


def order() -> Order:
    return Order("j", "q", [{"x": 1}])


def running() -> Running:
    return Running("j", "q", 7)


async def surround(is_async: bool, middleware: list[Any], what: Order | Running, call: Callable[[], Any]) -> Any:
    async def awaited() -> Any:
        return call()

    if isinstance(what, Order):
        return await around_aput(middleware, what, awaited) if is_async else around_put(middleware, what, call)
    return await around_arun(middleware, what, awaited) if is_async else around_run(middleware, what, call)


def fail() -> None:
    raise ZeroDivisionError


is_async = pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
what = pytest.mark.parametrize("make", [order, running], ids=["put", "run"])


@is_async
@what
async def test_the_first_is_entered_first_and_left_last(is_async: bool, make: Any) -> None:
    log: list[str] = []
    verb = "put" if make is order else "run"
    middleware = [Noting("a", log), Noting("b", log)]
    assert await surround(is_async, middleware, make(), lambda: log.append("call") or 5) == 5
    assert log == [f"a {verb}", f"b {verb}", "call", "b ends", "a ends"]


@is_async
@what
async def test_an_exception_passes_all_of_them(is_async: bool, make: Any) -> None:
    log: list[str] = []
    with pytest.raises(ZeroDivisionError):
        await surround(is_async, [Noting("a", log), Noting("b", log)], make(), fail)
    assert log[2:] == ["b ZeroDivisionError", "a ZeroDivisionError"]


@is_async
@what
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
async def test_an_exception_of_a_middleware_is_one_of_what_it_surrounds(is_async: bool, make: Any, after: bool) -> None:
    log: list[str] = []
    with pytest.raises(LookupError, match="middleware"):
        await surround(is_async, [Noting("a", log), Failing(after)], make(), lambda: log.append("call"))
    assert log[1:] == [*(["call"] if after else []), "a LookupError"]


@is_async
async def test_a_suppressed_exception_of_a_run_is_a_success(is_async: bool) -> None:
    run = running()
    assert await surround(is_async, [Suppressing()], run, fail) is None
    assert run.result is None


@is_async
async def test_a_suppressed_exception_of_a_put_is_an_error(is_async: bool) -> None:
    with pytest.raises(RuntimeError, match="suppressed the exception of a put of j"):
        await surround(is_async, [Suppressing()], order(), fail)


async def test_async_code_prefers_the_async_methods() -> None:
    log: list[str] = []
    await surround(True, [NotingAsync("a", log), Noting("b", log)], order(), lambda: None)
    await surround(True, [NotingAsync("a", log)], running(), lambda: None)
    await surround(False, [NotingAsync("a", log)], running(), lambda: None)
    assert [line for line in log if "ends" not in line] == ["a aput", "b put", "a arun", "a run"]


@what
async def test_sync_code_refuses_what_only_async_code_can_enter(make: Any) -> None:
    await surround(True, [OnlyAsync()], make(), lambda: None)
    with pytest.raises(TypeError, match=r"OnlyAsync has a(put|run) for async code alone: it needs (put|run) here"):
        await surround(False, [OnlyAsync()], make(), lambda: None)


@is_async
async def test_a_middleware_without_a_method_for_this_is_left_out(is_async: bool) -> None:
    class Puts:
        put = Noting.put

    assert await surround(is_async, [Puts()], running(), lambda: 5) == 5


@is_async
async def test_the_result_is_known_after_the_run(is_async: bool) -> None:
    found = []

    class Reader:
        @contextmanager
        def run(self, run: Running) -> Iterator[None]:
            yield
            found.append(run.result)

    await surround(is_async, [Reader()], running(), lambda: 5)
    assert found == [5]


@pytest.mark.parametrize(
    "bad", [None, 5, object(), Noting, lambda order: None], ids=["none", "number", "object", "class", "function"]
)
def test_what_is_no_middleware_is_refused(bad: Any) -> None:
    with pytest.raises(ValueError, match="a middleware is an object with a method put, run, aput or arun"):
        checked([Noting("a", []), bad])
