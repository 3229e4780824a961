"""What a cluster costs beside one client: `python -m benchmarks.cluster`.

Each server is a PostgreSQL server of its own, with its own postmaster. Databases of one server would share the
background processes and the log, so the CPU time of one could not be told from that of another.

    costs.py        the CPU time of the servers and of the client for a task, in rounds
    statements.py   the statements of a task
    waiting.py      what a worker and a take send that wait at 1, 3 and 8 servers; a worker's threads and connections
    spread.py       worker processes that each serve some of 8 servers: connections, threads, and how soon they settle
    servers.py      the servers, whose logs have the statements

The contenders, which take turns, are a client, the same once more, clusters of one and of three servers, and three
clients without a cluster, called in turn or in blocks. The second client shows what the method cannot tell apart, and
the three clients what three servers cost by themselves on one machine. Each contender has databases of its own: a
NOTIFY wakes all listeners of its database.
"""
