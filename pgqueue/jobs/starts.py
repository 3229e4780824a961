"""Objects that handlers share and a worker begins and ends: a pool, a model, an HTTP session. Made by
client.on_start().

A hook is a generator function. A worker runs it to its `yield` before its first task, and to its end after the last. A
handler gets the yielded object by calling the hook: `engine()` where the hook is `engine`. Type checkers know its type,
and no job has a parameter that its put() must not have.

A hook is begun once in a process, however many workers of the process use it: they are counted. So a reload of the same
code, where the new handlers begin while the old ones end, begins nothing twice. An async hook is begun once in each
event loop, since its object usually belongs to one.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Generic, TypeAlias, TypeVar, overload

from ..errors import Error

T = TypeVar("T")


class Start(Generic[T]):
    """A hook of a process, by a generator function. Called, it returns the object that the function has yielded."""

    def __init__(self, function: Callable[[], Iterator[T]]) -> None:
        self.name = f"{function.__module__}.{function.__qualname__}"
        self.__doc__ = function.__doc__
        self._function = function
        self._lock = threading.Lock()
        self._users = 0
        self._generator: Iterator[T] | None = None
        self._value: list[T] = []

    def __call__(self) -> T:
        """The object that it yielded in this process. Raises RuntimeError: no worker has begun it."""
        try:
            return self._value[0]
        except IndexError:
            raise RuntimeError(
                f"{self.name} has not begun: a worker begins it; elsewhere use `with {self.name}.started():`"
            ) from None

    @contextmanager
    def started(self) -> Iterator[T]:
        """Begin it for this block, in a test for example."""
        self.begin()
        try:
            yield self()
        finally:
            self.end()

    def begin(self) -> None:
        """Run it to its yield, unless another worker of this process did so. Raises Error: it failed."""
        with self._lock:
            if self._users == 0:
                generator = iter(self._function())
                with _named(self.name, "failed"):
                    self._value = [_first(generator)]
                self._generator = generator
            self._users += 1

    def end(self) -> None:
        """Run it to its end, if no other worker of this process needs it. Raises Error: it failed."""
        with self._lock:
            self._users -= 1
            if self._users:
                return
            generator, self._generator, self._value = self._generator, None, []
            if generator is not None:
                with _named(self.name, "failed at its end"):
                    if next(generator, self) is not self:
                        raise RuntimeError("it yields twice")


class LoopStart(Generic[T]):
    """A hook of an event loop, by an async generator function. Called in a loop, it returns the loop's object."""

    def __init__(self, function: Callable[[], AsyncIterator[T]]) -> None:
        self.name = f"{function.__module__}.{function.__qualname__}"
        self.__doc__ = function.__doc__
        self._function = function
        self._begun: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, tuple[AsyncIterator[T], T]]
        self._begun = weakref.WeakKeyDictionary()

    def __call__(self) -> T:
        """The object yielded in the running loop. Raises RuntimeError: it has not begun here, or no loop runs."""
        try:
            return self._begun[asyncio.get_running_loop()][1]
        except KeyError:
            raise RuntimeError(
                f"{self.name} has not begun in this loop: a worker begins it in its loops; elsewhere use"
                f" `async with {self.name}.started():`"
            ) from None

    @asynccontextmanager
    async def started(self) -> AsyncIterator[T]:
        """Begin it for this block, in a test for example."""
        await self.begin()
        try:
            yield self()
        finally:
            await self.end()

    async def begin(self) -> None:
        """Run it to its yield, in this loop. Raises Error: it failed."""
        generator = aiter(self._function())
        with _named(self.name, "failed"):
            try:
                self._begun[asyncio.get_running_loop()] = generator, await anext(generator)
            except StopAsyncIteration:
                raise RuntimeError("it does not yield") from None

    async def end(self) -> None:
        """Run it to its end. Raises Error: it failed."""
        generator, _ = self._begun.pop(asyncio.get_running_loop())
        with _named(self.name, "failed at its end"):
            if await anext(generator, self) is not self:
                raise RuntimeError("it yields twice")


AnyStart: TypeAlias = Start[Any] | LoopStart[Any]


@overload
def made(function: Callable[[], AsyncIterator[T]]) -> LoopStart[T]: ...
@overload
def made(function: Callable[[], Iterator[T]]) -> Start[T]: ...
def made(function: Callable[[], Any]) -> AnyStart:
    """The hook of a generator function. Raises ValueError: it is none, or has parameters."""
    if inspect.isasyncgenfunction(function):
        kind: type[AnyStart] = LoopStart
    elif inspect.isgeneratorfunction(function):
        kind = Start
    else:
        raise ValueError(f"on_start needs a generator function, which yields once, not {function!r}")
    if inspect.signature(function).parameters:
        raise ValueError(f"on_start calls its function without arguments, and {function!r} has parameters")
    return kind(function)


class Begun:
    """Hooks of a process that were begun together; end() ends them in the reverse order."""

    def __init__(self, starts: Sequence[AnyStart]) -> None:
        """Raises Error: one of them failed; those before it were ended."""
        self._begun: list[Start[Any]] = []
        for one in starts:
            if isinstance(one, Start):
                try:
                    one.begin()
                except Error:
                    self.end()
                    raise
                self._begun.append(one)

    def end(self) -> list[Error]:
        """Returns the errors of those that failed."""
        errors = []
        while self._begun:
            try:
                self._begun.pop().end()
            except Error as error:
                errors.append(error)
        return errors


class BegunInLoop:
    """The same for the hooks of a loop."""

    def __init__(self, starts: Sequence[AnyStart]) -> None:
        self._starts = [one for one in starts if isinstance(one, LoopStart)]
        self._begun: list[LoopStart[Any]] = []

    async def begin(self) -> None:
        """Raises Error: one of them failed."""
        for one in self._starts:
            await one.begin()
            self._begun.append(one)

    async def end(self) -> list[Error]:
        """Returns the errors of those that failed."""
        errors = []
        while self._begun:
            try:
                await self._begun.pop().end()
            except Error as error:
                errors.append(error)
        return errors


def _first(generator: Iterator[T]) -> T:
    for value in generator:
        return value
    raise RuntimeError("it does not yield")


@contextmanager
def _named(name: str, what: str) -> Iterator[None]:
    """Turn any exception of a hook, SystemExit too, into an Error that names the hook."""
    try:
        yield
    except BaseException as error:
        raise Error(f"the start hook {name} {what}: {type(error).__name__}: {error}") from error
