"""Tasks of Django's framework for the tests: at the level of a module, as it wants them."""

from __future__ import annotations

import ast
import asyncio
import importlib
import os
import sys
import threading
from typing import Any

import django

import pgqueue

framework: Any = importlib.import_module("django.tasks" if django.VERSION >= (6,) else "django_tasks")
task = framework.task

seen: list[Any] = []  # what the tasks below saw
begun, go_on = threading.Event(), threading.Event()


def clear() -> None:
    seen.clear()
    begun.clear()
    go_on.clear()


@task
def add(a, b=0):
    return a + b


@task()
async def add_slowly(a, b=0):
    return a + b


@task(priority=2, takes_context=True)
def note(context, *args, **kwargs):
    seen.append((context, args, kwargs))
    return {"attempt": context.attempt}


@task(takes_context=True)
async def note_async(context, text):
    seen.append((context, text))


@task
def wait():
    begun.set()
    assert go_on.wait(30)
    return "went on"


@task()
def double_dictionary(key):
    return {key: key * 2}


@task
def fail(message):
    raise ValueError(message)


class Odd(Exception):
    pass


@task
def fail_with(message):
    raise Odd(ast.literal_eval(message))


KINDS = ["syntax", "group", "chain", "no message"]


@task
def raise_kind(kind):
    if kind == "syntax":
        compile("1 +", "<task>", "exec")
    elif kind == "group":
        raise ExceptionGroup("several", [ValueError(1), KeyError(2)])
    elif kind == "chain":
        try:
            raise ValueError(kind)
        except ValueError as error:
            raise KeyError(kind) from error
    raise Odd


@task
async def fail_async(message):
    raise LookupError(message)


@task
def leave(code):
    sys.exit(code)


@task
def answer(what):
    """Something that JSON cannot hold, or jsonb."""
    return {"object": object(), "nan": float("nan"), "nul": {"a\0b": 1}, "much": "x" * 2**20}[what]


@task(takes_context=True)
def fail_until(context, attempt):
    if context.attempt < attempt:
        raise ValueError(f"attempt {context.attempt}")
    return context.attempt


@task(takes_context=True)
def fail_without(context, path):
    if not os.path.exists(path):
        raise ValueError(f"there is no {path}")
    return context.attempt


@task
def die_once(path):
    """Kills its process, except if the file is there."""
    if not os.path.exists(path):
        with open(path, "w"):
            pass
        os.kill(os.getpid(), 9)
    return "lived"


ENDS = {error.__name__: error for error in (KeyboardInterrupt, SystemExit)}


@task
def end(name):
    raise ENDS[name]


@task
async def end_async(name):
    raise ENDS[name]


def no_task():
    """What a task is not."""


@task
def hang():
    go_on.wait(30)


@task
async def hang_async():
    await asyncio.sleep(3600)


@task(takes_context=True)
def give_up(context, how):
    if context.attempt == 1:
        raise pgqueue.Bury("no use") if how == "Bury" else pgqueue.RetryLater(0)
    return context.attempt


@task
def goes():
    """Taken out of the module while it is queued."""


@task
def echo(what):
    return what


@task
def make_user(name):
    """Returns the id of a task that has the user's."""
    from django.contrib.auth.models import User

    return add.enqueue(User.objects.create(username=name).pk).id


@task
async def make_user_async(name):
    from django.contrib.auth.models import User

    user = await User.objects.acreate(username=name)
    return (await add.aenqueue(user.pk)).id
