"""A plugin of pytest for Celery's integration tests, which gives each backend the tests of Redis's.

A test of Celery is left out if the URL of its result backend is not Redis's, when it uses a Redis beside it, for
example for the order of side effects. With a Redis at REDIS_HOST and REDIS_PORT these tests run with any backend.
"""

from __future__ import annotations

import os
from typing import Any


class Url(str):
    __slots__ = ()

    def startswith(self, prefix: Any, *rest: Any) -> bool:
        return "redis" in str(prefix) or super().startswith(prefix, *rest)


def pytest_collection(session: object) -> None:
    if os.environ.get("REDIS_PORT"):
        import t.integration.conftest as theirs

        theirs.TEST_BACKEND = Url(theirs.TEST_BACKEND)
