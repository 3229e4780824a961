"""Which of a DSN's hosts is the primary: the one on the newest timeline.

A DSN with several hosts finds the primary after a fail-over. But libpq takes the first host that accepts writes. If the
old primary comes back before it was made a standby, that may be the old one: what it takes is lost. A promotion begins
a new timeline, so of two primaries with one system identifier the one with the lower timeline is the old one.

Each new connection asks where it is, one round trip for a DSN with several hosts. A process remembers the newest
timeline of each system, and refuses a connection to an older one. A process that has just begun remembers nothing, so
it asks the other hosts before its first connection, and again when a connection was made SEEN seconds later. A host
that is down, or does not answer in time, is no primary for now.

No check by clients can keep out a client that reaches the old primary alone. That is for the manager of the servers:
it stops the old primary before the promotion.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, LiteralString, NamedTuple

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

SEEN = 2.0  # seconds for which what the other hosts said holds
ASKED = 1  # seconds that a host has for its answer
WHERE: LiteralString = (
    "SELECT s.system_identifier, CASE WHEN NOT pg_catalog.pg_is_in_recovery() THEN"
    " ('x' OPERATOR(pg_catalog.||) pg_catalog.left(pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_insert_lsn()),"
    " 8))::pg_catalog.bit(32)::pg_catalog.int4 END FROM pg_catalog.pg_control_system() s"
)


class OldPrimary(psycopg.OperationalError):
    """A connection leads to a primary in whose place another server has been promoted."""


class At(NamedTuple):
    """Where a connection leads. `timeline`: None on a standby."""

    system: int
    timeline: int | None


_newest: dict[int, int] = {}  # the newest timeline of each system that this process has met
_asked: dict[str, float] = {}  # when the hosts of a conninfo were asked
_lock = threading.Lock()


def has_several(conninfo: str) -> bool:
    """Whether a conninfo has several hosts."""
    known = conninfo_to_dict(conninfo)
    return any("," in str(known.get(name) or "") for name in ("host", "hostaddr"))


def prepare(conninfo: str) -> None:
    """Before a connection: ask all hosts of a conninfo, if it has several and they were not asked lately."""
    if not has_several(conninfo) or time.monotonic() < _asked.get(conninfo, float("-inf")) + SEEN:
        return
    hosts = list(each(conninfo))
    with ThreadPoolExecutor(len(hosts), "pgqueue-primaries") as asking:
        for at in asking.map(_ask, hosts):
            if at is not None:
                _meet(at)
    _asked[conninfo] = time.monotonic()


def newest_of(conninfo: str) -> str:
    """The same conninfo with the hosts of old primaries left out."""
    raise NotImplementedError
