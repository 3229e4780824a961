"""The setting TASKS: what `manage.py check` says of it; and where it is used, what is wrong is refused in one line."""

from __future__ import annotations

import errands
import pytest
from django.core.exceptions import ImproperlyConfigured
from django.core.management import call_command
from django.core.management.base import SystemCheckError
from django.test.utils import override_settings
from errands import framework
from tasking import backend

from pgqueue.contrib.django import clients
from pgqueue.contrib.django.backend import register

pytestmark = pytest.mark.once


def problems(**tasks):
    with override_settings(TASKS=tasks):
        return [(message.id, message.msg) for message in framework.checks.check_tasks()]


def test_nothing_is_wrong():
    options = {"database": "default", "keep_results": 60, "max_attempts": 5, "retry_delay": 0.1, "max_retry_delay": 9}
    assert problems(default=backend("default", "mail"), other=backend("slow", **options)) == []
    assert problems(default=backend("default"), other=backend("default", database="other")) == []


def test_the_checks_are_django_s():
    with (
        override_settings(TASKS={"default": backend("default", wrong=1)}),
        pytest.raises(SystemCheckError, match=r"pgqueue\.E101"),
    ):
        call_command("check")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"keep": 1}, "there is no option 'keep': there are database, keep_results, max_attempts, retry_delay,"),
        ({"keep_results": None}, "keep_results must be a number of seconds or a timedelta, not None"),
        ({"keep_results": 0}, "keep_results must be over 0 to"),
        ({"keep_results": "a day"}, "keep_results must be a number of seconds or a timedelta, not 'a day'"),
        ({"max_attempts": 0}, "max_attempts must be a whole number from 1"),
        ({"max_attempts": None}, "max_attempts must be a whole number from 1"),
        ({"retry_delay": -1}, "retry_delay must be 0 to"),
        ({"max_retry_delay": "x"}, "max_retry_delay must be a number of seconds or a timedelta, not 'x'"),
    ],
)
def test_options_that_cannot_be(django_db, options, message):
    ((id, text),) = problems(default=backend("default", **options))
    assert id == "pgqueue.E101"
    assert text.startswith("OPTIONS of TASKS['default']: " + message)
    assert "\n" not in text
    with override_settings(TASKS={"default": backend("default", **options)}):
        for use in (errands.add.enqueue, lambda: errands.add.get_result("1"), lambda: register(clients.client())):
            with pytest.raises(ImproperlyConfigured) as caught:
                use()
            assert str(caught.value) == text


def test_options_are_a_dict():
    text = "OPTIONS of TASKS['default']: they must be a dict, not ['keep_results']"
    assert problems(default=backend("default") | {"OPTIONS": ["keep_results"]}) == [("pgqueue.E101", text)]


@pytest.mark.parametrize(
    ("database", "id", "message"),
    [
        ("nope", "pgqueue.E103", "TASKS['default'] uses the database 'nope', which DATABASES lacks."),
        ("lite", "pgqueue.E104", "TASKS['default'] uses the database 'lite', which is not PostgreSQL."),
    ],
)
def test_a_database_that_cannot_be(database, id, message):
    assert problems(default=backend("default", database=database)) == [(id, message)]
    with (
        override_settings(TASKS={"default": backend("default", database=database)}),
        pytest.raises(ImproperlyConfigured, match=database),
    ):
        errands.add.enqueue(1)


@pytest.mark.parametrize("name", ["", "x" * 201, "a\0b", 7])
def test_a_queue_s_name_that_cannot_be(name):
    ((id, text),) = problems(default=backend(name))
    assert id == "pgqueue.E102"
    assert text.startswith("QUEUES of TASKS['default']: a queue's name ")


def test_without_queues_a_worker_has_nothing_to_do():
    assert problems(default=backend()) == [("pgqueue.W101", "QUEUES of TASKS['default'] is empty.")]


def test_two_backends_with_the_same_queue(django_db):
    tasks = {"default": backend("default", "mail"), "more": backend("mail", "slow")}
    text = "TASKS['default'] and TASKS['more'] share the queue 'mail' of 'default'."
    assert problems(**tasks) == [("pgqueue.E106", text)]
    with (
        override_settings(TASKS=tasks),
        pytest.raises(ImproperlyConfigured, match=r"the queue 'mail' is one of TASKS"),
    ):
        register(clients.client())


def test_the_app_has_to_be_installed():
    with override_settings(INSTALLED_APPS=["django.contrib.auth", "django.contrib.contenttypes"]):
        ((id, text),) = problems(default=backend("default"))
    assert (id, text) == ("pgqueue.E105", "TASKS['default'] needs 'pgqueue.contrib.django' in INSTALLED_APPS.")
