"""The text of the page around the tables."""

from __future__ import annotations

HEAD = """\
# Benchmarks

How fast pgqueue is beside plain SQL on the same server, how its cost grows, and where it misses its targets.
`python -m benchmarks` measures it; `--render` writes this page. For example, a ratio of 0.5 between two rates means
that pgqueue does half as much in a second as the reference; between two times, that it needs half as long.

Each line compares within one run on one server: the contenders take turns, and a ratio is the median of the ratios
within a round. Other figures are medians, unless the line says otherwise. Trust the ratios; the absolute figures depend
on the machine as much."""

TARGETS = """\
A figure in bold misses its target. A column that is named *loaded* was measured beside processes that compute without a
pause, one for each CPU: there the times by the clock include the wait for a CPU."""

PLOTS = """\
Measured on a quiet machine; a version of PostgreSQL has its own kind of line. The cost of a put, take and ack among
waiting processes, and of idle clients, is the CPU time of the server's backends."""

NOTES = """\
## Notes

The *conventional design* is one table with a state column: `UPDATE ... SKIP LOCKED` to take, `DELETE` to ack, with no
recovery, fence, deadline or wake-up (`benchmarks/conventional.py`).

*Write-ahead log.* A put, take and ack in batches of 100 writes 0.58 of what the conventional design writes. The put,
which both designs pay, is 361 bytes of 477: the row and two index entries. Take and ack write 116 bytes here and 467
there, where the UPDATE writes the row a second time; pgqueue's take writes to an unlogged table. By arithmetic this
design cannot come below 0.46, so there is no target.

*A process overtakes another* if it gets a task although the other has waited for longer."""
