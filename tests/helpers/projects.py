"""A Django project in a folder of a test, whose worker is a process of its own and has child processes."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from commands import environment
from sites import started

import pgqueue

SETTINGS = """
    import django

    from pgqueue.contrib.django import database

    BACKEND = "pgqueue.contrib.django.PgqueueBackend"
    DATABASES = {"default": database() | {"CONN_MAX_AGE": None}}
    INSTALLED_APPS = [
        "django.contrib.contenttypes",
        "django.contrib.auth",
        *(["django_tasks"] if django.VERSION < (6,) else []),
        "pgqueue.contrib.django",
        "shop",
    ]
    LOGGING = {
        "version": 1,
        "disable_existing_loggers": False,
        "handlers": {"stderr": {"class": "logging.StreamHandler"}},
        "loggers": {"shop": {"level": "INFO"}},
        "root": {"handlers": ["stderr"]},
    }
    SECRET_KEY = "of the tests"
    TASKS = {
        "default": {"BACKEND": BACKEND, "QUEUES": ["default"], "OPTIONS": {"isolation": "process", "max_attempts": 2}},
    }
    USE_TZ = True
"""
APPS = """
    import os

    from django.apps import AppConfig


    class ShopConfig(AppConfig):
        name = "shop"

        def ready(self):
            if os.path.exists("broken"):
                raise RuntimeError("the shop is closed")
"""
TASKS = """
    import asyncio
    import ctypes
    import logging
    import os
    import time
    from typing import Any

    from django.contrib.auth.models import User
    from django.db import connection, transaction

    try:
        from django.tasks import task
    except ImportError:  # before Django 6
        from django_tasks import task

    from pgqueue import Retry, SoftTimeLimit
    from pgqueue.contrib.django import client, job, queue

    log = logging.getLogger("shop")
    once = {"isolation": "process", "keep_result": 60, "retry": Retry(attempts=1)}


    def backend():
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_backend_pid()")
            return cursor.fetchone()[0]


    @client().on_start
    def model():
        yield f"model of {os.getpid()}"


    @job("heavy", name="make", **once)
    def make(name: str) -> list[Any]:
        with transaction.atomic():
            user = User.objects.create(username=name)
            follow.put(user.pk)
        log.info("made %s", name)
        return [user.pk, os.getpid(), backend(), model()]


    @job("heavy", name="make-async", **once)
    async def make_async(name: str) -> list[Any]:
        user = await User.objects.acreate(username=name)
        return [user.pk, os.getpid()]


    @job("light", name="follow", keep_result=60)
    def follow(user: int) -> list[Any]:
        return [User.objects.get(pk=user).username, os.getpid(), backend()]


    @job("heavy", name="leave-open", **once)
    def leave_open(how: str) -> list[Any]:
        seen = [connection.in_atomic_block, User.objects.filter(username="open").count()]
        if how == "atomic":
            transaction.atomic().__enter__()
            User.objects.create(username="open")
        return seen


    @job("heavy", name="die", **once)
    def die(how: str) -> None:
        User.objects.count()
        if how == "segfault":
            ctypes.string_at(0)
        os._exit(3)


    @job("heavy", name="stay", **once)
    def stay(path: str) -> None:
        note(path)
        time.sleep(60)


    @job("heavy", name="hang", timeout=0.5, **once)
    def hang(path: str) -> None:
        note(path)
        ctypes.PyDLL(None).sleep(60)


    @job("heavy", name="soft", soft_timeout=0.5, **once)
    def soft() -> str:
        try:
            time.sleep(60)
        except SoftTimeLimit:
            return "in time"


    @job("heavy", name="sure", isolation="process", keep_result=60, retry=Retry(attempts=50, delay=0.2))
    def sure() -> str:
        return "open"


    def note(path):
        with open(path + ".new", "w") as file:
            file.write(str(os.getpid()))
        os.rename(path + ".new", path)


    @task
    def add(a, b=0):
        return [a + b, os.getpid()]


    @task
    async def add_async(a, b=0):
        await asyncio.sleep(0)
        user = await User.objects.acreate(username=f"{a}+{b}")
        return [user.username, os.getpid()]


    @task(takes_context=True)
    def second(context):
        result = context.task_result
        if context.attempt == 1:
            raise LookupError("not yet")
        return [context.attempt, result.id, result.errors[0].exception_class_path, len(result.worker_ids)]


    @task
    def crash():
        os.abort()


    @task
    def unstorable():
        return object()
"""
LOOK = """
    import json

    from shop.tasks import add

    found = add.get_backend().get_result({id!r})
    value = found.return_value if found.status.name == "SUCCESSFUL" else None
    errors = [error.exception_class_path for error in found.errors]
    in_order = found.started_at <= found.last_attempted_at <= found.finished_at
    print(json.dumps([found.status.name, found.attempts, errors, value, in_order, found.worker_ids[-1]]))
"""


class Project:
    """A project in a folder, with a client of its database."""

    def __init__(self, folder: Path, dsn: str) -> None:
        self.folder = folder
        self.client = pgqueue.Client(dsn)
        self._environment = {
            "PGQUEUE_DSN": dsn,
            "DJANGO_SETTINGS_MODULE": "shop_settings",
            "PYTHONUNBUFFERED": "1",
        }
        (folder / "shop").mkdir()
        for name, text in (
            ("shop_settings", SETTINGS),
            ("shop/__init__", ""),
            ("shop/apps", APPS),
            ("shop/tasks", TASKS),
        ):
            (folder / f"{name}.py").write_text(textwrap.dedent(text))

    @contextmanager
    def working(self, *options: str) -> Iterator[subprocess.Popen[str]]:
        """A worker under way. What it prints is in `log`."""
        command = ["django", "pgqueue", "worker", "-c", "2", "--retry-delay", "0", *options]
        with (
            (self.folder / "log").open("a") as log,
            started(*command, settings=self._environment, cwd=self.folder, output=log) as worker,
        ):
            yield worker

    def put(self, job: str, queue: str = "heavy", **args: Any) -> pgqueue.Task:
        return self.client.queue(queue).put({"job": job, "args": args})

    def enqueue(self, name: str, *args: Any) -> pgqueue.Task:
        return self.put(f"shop.tasks.{name}", "default", args=list(args))

    def result(self, task: pgqueue.Task) -> Any:
        return self.client.results.get(task, timeout=60)

    def look(self, task: pgqueue.Task) -> Any:
        """The TaskResult, as another process of the project sees it."""
        code = textwrap.dedent(LOOK).format(id=str(task.id))
        command = [sys.executable, "-m", "django", "shell", "-c", code]
        environ = environment(**self._environment)
        done = subprocess.run(command, cwd=self.folder, env=environ, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text()
