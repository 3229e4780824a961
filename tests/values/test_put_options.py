"""The options of a put are declared once: what has to repeat them names the same ones."""

from __future__ import annotations

import re
from dataclasses import fields
from typing import Any, get_type_hints

import pytest

from pgqueue import Put, Queue
from pgqueue._calls import casts
from pgqueue._calls.put_options import PutArguments, PutManyArguments, PutManyOptions, PutOptions
from pgqueue.jobs.job import Job

OPTIONS = [field.name for field in fields(PutOptions)]
#: The types of keyword arguments whose options have another one, since the check converts them.
CONVERTED = {"after", "batch", "lane", "key"}


@pytest.mark.parametrize(
    ("arguments", "options"), [(PutArguments, PutOptions), (PutManyArguments, PutManyOptions)], ids=["put", "put_many"]
)
def test_the_types_of_keyword_arguments_are_those_of_the_options(arguments: Any, options: Any):
    given, kept = get_type_hints(arguments), get_type_hints(options)
    assert given.keys() == {field.name for field in fields(options)}
    for name in given.keys() - CONVERTED:
        assert given[name] == kept[name], name


def test_each_option_has_an_sql_type():
    assert {field.name for field in fields(PutManyOptions)} == set(OPTIONS)
    for name in OPTIONS:
        if name != "unique_data":  # it becomes a key
            assert casts.cast("put", name)


@pytest.mark.parametrize("explained", [Queue.put, Queue.put_many, Put, Job.options], ids=lambda one: one.__qualname__)
def test_each_option_is_explained(explained: Any):
    said = explained.__doc__
    assert [name for name in OPTIONS if not re.search(rf"\b{name}\b", said)] == []
