"""pgqueue's speed, measured against plain SQL on the same server in the same run: `python -m benchmarks`.

Absolute figures say more about the machine than about the queue. So each measure runs its contenders in turn, round
after round, and reports the median of the ratios *within* a round: a disturbance affects both sides of a round.

server.py starts the server, conventional.py has the rival's SQL, pgbench.py runs it, rounds.py takes turns, children.py
has the processes that take, load.py those that disturb, cpu.py reads what the server's backends use. measures/ holds
one file for each measure, and peers/ other queues with the same work. measuring.py runs the measures, store.py keeps
what they found in a file, and report.py and plot.py make the page of it.
"""
