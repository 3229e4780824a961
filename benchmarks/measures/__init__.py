"""One file a measure: a function from a Bench to its Findings. The order here is the order of the table."""

from __future__ import annotations

from ..bench import Measure
from . import (
    bulk_put,
    delayed,
    drain,
    held_snapshot,
    in_flight,
    kill,
    lanes,
    latency,
    monitoring,
    one_by_one,
    poll,
    post,
    single_put,
    wal,
)

MEASURES: dict[str, Measure] = {
    "bulk-put": bulk_put.measure,
    "single-put": single_put.measure,
    "drain": drain.measure,
    "one-by-one": one_by_one.measure,
    "latency": latency.measure,
    "post": post.measure,
    "held-snapshot": held_snapshot.measure,
    "delayed": delayed.measure,
    "in-flight": in_flight.measure,
    "lanes": lanes.measure,
    "poll": poll.measure,
    "monitoring": monitoring.measure,
    "wal": wal.measure,
    "kill": kill.measure,
}
