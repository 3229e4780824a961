"""Messages of kombu as data of tasks, and back."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from pgqueue.contrib.celery import messages


def message(body: str = '[[2], {"y": 3}, {}]', **headers: object) -> dict[str, Any]:
    return {
        "body": body,
        "content-type": "application/json",
        "content-encoding": "utf-8",
        "headers": headers,
        "properties": {"body_encoding": None, "delivery_info": {"exchange": "", "routing_key": "celery"}},
    }


def test_the_data_of_a_task_of_celery_names_it() -> None:
    data = messages.data_of(message(task="shop.add", id="7"))
    assert data["job"] == "shop.add"
    assert messages.message_of(data, 1, "celery") == message(task="shop.add", id="7")


def test_a_message_of_another_program_is_stored_as_it_is() -> None:
    plain = message(custom=1)
    assert messages.data_of(plain) == plain
    assert messages.message_of(plain, 1, "q") == plain


@pytest.mark.parametrize(
    ("data", "args", "kwargs"),
    [
        ({"job": "shop.add", "args": [2, 3]}, [2, 3], {}),
        ({"job": "shop.add", "args": {"x": 2, "y": 3}, "sig": "abc"}, [], {"x": 2, "y": 3}),
        ({"job": "shop.add", "args": [2], "kwargs": {"y": 3}}, [2], {"y": 3}),
        ({"job": "shop.add"}, [], {}),
    ],
)
def test_a_job_is_a_call_of_the_task_of_its_name(data: Any, args: list[Any], kwargs: dict[str, Any]) -> None:
    made = messages.message_of(data, 17, "celery")
    assert json.loads(made["body"])[:2] == [args, kwargs]
    assert made["headers"]["task"] == "shop.add"
    assert made["headers"]["id"] == "17"
    assert messages.message_of({**data, "id": "mine"}, 17, "celery")["headers"]["id"] == "mine"


@pytest.mark.parametrize("data", [None, 7, "text", [1], {}, {"job": 7}, {"body": "x"}, {"body": "x", "properties": 1}])
def test_other_data_is_a_message_that_celery_rejects(data: Any) -> None:
    made = messages.message_of(data, 17, "q")
    assert json.loads(made["body"]) == data
    assert made["headers"] == {}


def test_a_task_that_celery_lets_expire_stays_for_the_worker_that_says_so() -> None:
    made = message(task="shop.add", expires="2030-01-02T12:00:00")
    made["properties"]["expiration"] = "1000"
    assert messages.options_of(made, 0, False) == {}
    plain = message()
    plain["properties"]["expiration"] = "1000"
    assert messages.options_of(plain, 0, False) == {"ttl": 1.0}


def test_a_message_with_the_header_is_put_as_a_job() -> None:
    as_job: dict[str, Any] = {messages.AS_JOB: True}
    assert messages.data_of(message('[[], {"to": "ada"}, {}]', task="mail.send", **as_job)) == {
        "job": "mail.send",
        "args": {"to": "ada"},
    }
    with pytest.raises(ValueError, match="arguments that all have names"):
        messages.data_of(message(task="mail.send", **as_job))
    with pytest.raises(ValueError, match="serializer json"):
        messages.data_of(message("gASVBgAAAAA=", task="mail.send", **as_job))


def test_options_of_a_put() -> None:
    plain = message()
    assert messages.options_of(plain, 0, False) == {}
    assert messages.options_of(plain, 9, False) == {"priority": -9}
    plain["properties"]["expiration"] = "1500"
    assert messages.options_of(plain, 0, False) == {"ttl": 1.5}
    later = message(task="shop.add", eta="2030-01-01T12:00:00", expires="2030-01-02T12:00:00")
    later["properties"]["expiration"] = "1500"
    assert messages.options_of(later, 0, False) == {"run_at": datetime(2030, 1, 1, 12, tzinfo=UTC)}
    assert messages.options_of(later, 0, True) == {}


def test_options_of_a_queue() -> None:
    given = {
        "x-message-ttl": 5000,
        "x-max-length": 10,
        "x-dead-letter-exchange": "dead",
        "x-dead-letter-routing-key": "k",
        "x-max-priority": 10,
    }
    assert messages.queue_options(given) == {"ttl": 5.0, "maxlen": 10, "dead_letter": "dead", "dead_letter_key": "k"}
    assert messages.queue_options(None) == {}
