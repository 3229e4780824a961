"""The fault rig: processes of every kind work on queues while faults happen; a ledger proves that nothing went wrong.

    python -m faults --short                        # about a minute, with private clusters
    python -m faults kill restart --times 50        # some faults, many times
    python -m faults kill lock-tables --dsn ...     # against a server that runs already

An arena (arena.py) is a server of one kind, a crew of processes that work on it, and a list of faults. Each process
writes a journal (journal.py) of what it does. When all faults are over and the queues are empty, the ledger (ledger/)
reads the journals and the tables, and lists what must not have happened.

    journal.py     the lines of a journal
    ledger/        the proof: what must hold, with its theory
    programs/      the processes of the load
    crew.py        starts, kills, stops and restarts these processes
    servers.py     a private cluster, or a database of its own on a given server; standbys.py, machines.py: special ones
    proxy.py, pgbouncer.py, netns.py   what lies between the processes and the server
    kinds/         the faults, one function each
    arena.py       a server, a crew, and faults one after another
    report.py      the results as a table
"""
