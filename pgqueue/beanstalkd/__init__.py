"""A server that speaks beanstalkd's protocol: `pgqueue beanstalkd`. Tubes are queues, and jobs are tasks.

    protocol.py    lines to commands, and answers to lines. Pure
    bodies.py      bodies of jobs as data of tasks, and back. Pure
    wire.py        one connection's bytes, within bounds
    jobs.py        each command in the calls of pgqueue
    acks.py        acks of several connections in one statement
    connection.py  one connection's commands, its tubes, and the jobs that it has reserved
    figures.py     the state that connections share: counters, pauses, the drain mode
    stats.py       the answers of the stats commands, from the database and from the figures
    clock.py       the database's clock, for DEADLINE_SOON
    leftovers.py   deletes the queues of tubes that are empty and left
    server.py      accepts connections, and ends them

All connections share one client, and with it one session: when the process dies, the jobs that its connections have
reserved are ready again within a second. A job that is reserved is held by its take's token, and each connection keeps
the tokens of its own takes. So another connection of the same session cannot settle the job.
"""

from .server import Server

__all__ = ["Server"]
