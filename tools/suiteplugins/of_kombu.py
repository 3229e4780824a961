"""The tests that kombu has for all of its transports, for the transport of SUITE_URL.

kombu has such a module for each of its transports.
"""

from __future__ import annotations

import os

import kombu
import pytest
from t.integration import common

import pgqueue.contrib.celery  # noqa: F401  it enters the transport's name, which a bare Connection would not find

URL = os.environ["SUITE_URL"]
SCHEME = URL.partition("://")[0]
DEAD = f"{SCHEME}://localhost:12345"


@pytest.fixture
def connection():
    return kombu.Connection(URL)


@pytest.fixture
def invalid_connection():
    return kombu.Connection(DEAD, connect_timeout=1)


@pytest.fixture
def failover_connection():
    return kombu.Connection(f"{DEAD};{URL}", connect_timeout=1)


class test_Basic(common.BasicFunctionality):
    pass


class test_Exchanges(common.BaseExchangeTypes):
    pass


class test_Priority(common.BasePriority):
    PRIORITY_ORDER = "desc" if SCHEME == "redis" else "asc"  # AMQP's: the highest number first


class test_Message(common.BaseMessage):
    pass


class test_TimeToLive(common.BaseTimeToLive):
    pass


class test_EventLoop(getattr(common, "BaseEventLoop", object)):  # since kombu 5.7, as the next
    pass


class test_Failover(getattr(common, "BaseFailover", object)):
    pass
