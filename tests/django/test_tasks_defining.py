"""django.tasks as its documentation has it: backends, and what is a valid task. Nothing here asks the database."""

from __future__ import annotations

import pickle
from datetime import datetime

import errands
import pytest
from django.test.utils import override_settings
from django.utils import timezone
from errands import framework
from tasking import InvalidTask, InvalidTaskBackend, backend

from pgqueue.contrib.django import PgqueueBackend

TASKS = {"default": backend("default", "emails"), "reserve": backend("reserve"), "any": backend()}


@pytest.fixture(autouse=True)
def _tasks():
    with override_settings(TASKS=TASKS):
        yield


# --- backends


def test_backends_are_retrieved_by_alias():
    assert isinstance(framework.task_backends["default"], PgqueueBackend)
    assert framework.task_backends["reserve"].alias == "reserve"
    assert framework.default_task_backend.alias == "default"
    with pytest.raises(InvalidTaskBackend):
        framework.task_backends["nope"]


def test_every_feature_is_supported():
    ours = framework.default_task_backend
    assert ours.supports_defer
    assert ours.supports_async_task
    assert ours.supports_get_result
    assert ours.supports_priority


# --- defining and modifying tasks


def test_the_decorator_makes_a_task_with_its_defaults():
    task = errands.add
    assert isinstance(task, framework.base.Task)
    assert (task.priority, task.queue_name, task.backend, task.run_after, task.takes_context) == (
        0,
        "default",
        "default",
        None,
        False,
    )
    assert (task.name, task.module_path) == ("add", "errands.add")
    assert isinstance(task.get_backend(), PgqueueBackend)


def test_the_decorator_takes_attributes():
    task = framework.task(priority=2, queue_name="emails")(errands.no_task)
    assert (task.priority, task.queue_name) == (2, "emails")


def test_a_task_can_be_called_in_place():
    assert errands.add.call(1, b=2) == 3
    assert errands.add_slowly.call(1, b=2) == 3


async def test_a_task_can_be_awaited_in_place():
    assert await errands.add.acall(1, b=2) == 3
    assert await errands.add_slowly.acall(1, b=2) == 3


def test_using_makes_a_modified_task_and_leaves_the_original():
    moment = timezone.now()
    other = errands.add.using(priority=10, queue_name="emails", run_after=moment)
    assert (other.priority, other.queue_name, other.run_after, other.func) == (10, "emails", moment, errands.add.func)
    assert (errands.add.priority, errands.add.queue_name, errands.add.run_after) == (0, "default", None)
    assert errands.add.using(backend="any", queue_name="x").get_backend().alias == "any"


def test_attributes_of_a_task_cannot_be_modified():
    with pytest.raises(AttributeError):
        errands.add.priority = 5


def test_run_after_cannot_be_static():
    with pytest.raises(TypeError):
        framework.task(run_after=timezone.now())(errands.no_task)


# --- what is no valid task


def test_a_task_is_a_function_of_a_module():
    def local(): ...

    for function in (local, lambda: None, len):
        with pytest.raises(InvalidTask, match="module level"):
            framework.task(function)


@pytest.mark.parametrize("priority", [-101, 101, 1.5])
def test_a_priority_is_a_whole_number_up_to_100(priority):
    with pytest.raises(InvalidTask, match="whole number between -100 and 100"):
        errands.add.using(priority=priority)


def test_a_queue_has_to_be_one_of_the_backend():
    with pytest.raises(InvalidTask, match="Queue 'nope' is not valid"):
        errands.add.using(queue_name="nope")


def test_what_takes_context_has_it_as_its_first_argument():
    with pytest.raises(InvalidTask, match="first argument of 'context'"):
        framework.task(takes_context=True)(errands.add.func)


def test_run_after_has_to_be_aware():
    with pytest.raises(InvalidTask, match="aware datetime"):
        errands.add.using(run_after=datetime.now())


def test_a_backend_that_there_is_not():
    with pytest.raises(InvalidTaskBackend):
        errands.add.using(backend="nope")


@pytest.mark.skipif(not hasattr(framework.base.Task, "_reconstruct"), reason="from Django 6.1 on")
def test_tasks_can_be_pickled():
    assert pickle.loads(pickle.dumps(errands.add)) == errands.add
