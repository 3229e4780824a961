"""The models name what the schema and the library have."""

from dataclasses import fields

from django.contrib.admin.utils import flatten_fieldsets

from pgqueue._calls.queue import QueueOptions
from pgqueue.contrib.django.admin.queues import QueuePage
from pgqueue.contrib.django.models import Queue

OPTIONS = {field.name for field in fields(QueueOptions)}


def test_each_option_of_a_queue_is_a_field():
    assert OPTIONS - {field.name for field in Queue._meta.get_fields()} == set()


def test_each_option_of_a_queue_is_shown():
    shown = {name.removesuffix("_") for name in flatten_fieldsets(QueuePage.fieldsets)}
    assert OPTIONS - shown == set()
