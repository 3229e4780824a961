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

*A process overtakes another* if it gets a task although the other has waited for longer.

*The dashboard* with 1,000,000 tasks in 1,000 queues and 200 workers. The first two columns are from PostgreSQL 18 on
two CPUs with no other load. The others are from PostgreSQL 15, while five to ten other processes computed, so the
times by the clock include waits for a CPU. There the CPU time is that of the server and of the dashboard for one page,
and the column *before* is that of an earlier version with the same data, beside the same processes.

| page | no load: median | worst | loaded: CPU before | CPU after | median | worst |
|---|---|---|---|---|---|---|
| overview | 48 ms | 99 ms | 125 ms | 61 ms | 104 ms | 166 ms |
| overview, a search | 39 ms | 41 ms | 122 ms | 64 ms | 156 ms | 201 ms |
| failures | 42 ms | 45 ms | 58 ms | 55 ms | 119 ms | 499 ms |
| workers | 23 ms | 62 ms | 92 ms | 35 ms | 80 ms | 335 ms |
| a queue | 9 ms | 12 ms | 33 ms | 15 ms | 36 ms | 47 ms |
| jobs | 11 ms | 12 ms | 18 ms | 17 ms | 40 ms | 146 ms |
| server | 8 ms | 9 ms | 15 ms | 12 ms | 23 ms | 41 ms |
| tasks, a task and all other pages | 1 to 5 ms | 7 ms | - | 1 to 5 ms | 1 to 9 ms | 16 ms |

The targets are 100 ms at the median and 300 ms at worst: without other load each page meets them; beside those
processes each meets them by CPU time, and the overview, failures and workers did not by the clock. Fifty open
browsers, while ten tasks a second are put, cost the server 1.46 % of a core, and 1.67 % beside them (2 % were asked).
A put after six quiet seconds was on the page after 0.04 s at the median and 0.42 s at worst, and after 0.34 s and 0.44
s beside them (1 s was asked); beside ten to fifteen busy processes 12.5 s before and 0.37 s after. While puts go on, a
page follows some seconds behind, see [The dashboard](design.md#the-dashboard)."""
