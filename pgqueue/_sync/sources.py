# Generated from pgqueue/_async/sources.py by tools/blocking.py: edit that file, not this one.

"""Where a cluster reads at its start which servers it has."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import psycopg

from .._calls.call import Call
from .._engine.cluster.members import Listing, none_told, unreadable
from .._engine.cluster.servers import UNREACHABLE
from .._values.arguments import Seconds
from ..errors import ClusterError, NotAllowed
from .client import Client


def told(dsns: Sequence[str], read: Callable[[str], Call[Listing]], connect_timeout: Seconds) -> Listing:
    """The listing of the first server that answers."""
    failures: list[Exception] = []
    for dsn in dsns:
        with Client(dsn, connect_timeout=connect_timeout) as client:
            try:
                return client.shell.run(read(dsn))
            except (*UNREACHABLE, ClusterError) as error:
                failures.append(error)
            except (psycopg.Error, NotAllowed) as error:
                failures.append(unreadable(dsn, error))
    if len(failures) == 1:
        raise failures[0]
    raise none_told(failures)
