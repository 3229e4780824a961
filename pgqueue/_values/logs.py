"""The package's loggers. A filter or a handler that an application has added to them may raise, and ends nothing.

For example, a filter adds the data of the present web request, and finds none in a worker's thread. A call of
logging.Logger raises that error to its caller. Here this is a loop, which would end amid its work: the settler takes
the failures of many tasks from its queue, logs each, and sends them. They were lost, and their tasks stayed taken.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import Any


class Log(logging.LoggerAdapter[logging.Logger]):
    """A logger whose calls do not raise. An error of a filter or handler is written to stderr, as logging does with the
    errors of its own handlers (logging.Handler.handleError)."""

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        with unfailing(msg, args):
            self.logger.log(level, msg, *args, stacklevel=2, **kwargs)  # the record names our caller


@contextlib.contextmanager
def unfailing(message: object, arguments: object = ()) -> Iterator[None]:
    """Within this block a record is logged; `message` and `arguments` describe it if that raises."""
    try:
        yield
    except Exception:
        with contextlib.suppress(Exception):  # stderr may be closed
            _stderr.handleError(logging.makeLogRecord({"msg": message, "args": arguments}))


_stderr = logging.Handler()
log = Log(logging.getLogger("pgqueue"))
