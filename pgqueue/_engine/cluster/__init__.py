"""One queue over several servers, for a load that one server cannot carry.

There is no coordinator, and no server knows of the others: each has a complete pgqueue of its own. A put is sent to
the server that its place, its lane or its key names; without a lane or a key also to the next one that can be
reached.
A take takes from all servers. So a server that fails holds up its own tasks and nothing else, and no task has to move
when a server is added or removed.

    servers.py    the servers to call, their order, and the rest of a server after a failure
    placing.py    which server a put belongs to
    spreading.py  which servers each worker serves, if each serves only some
    kept.py       the tasks whose limit one server keeps
    merging.py    one answer of the answers of all servers
    takes.py      a take from all servers, which waits for all of them at once

The promises of one server (order, lanes, keys, capacities, an ack that hands on) hold on that server and not across
them; and the tasks of a dead server wait until it is back. The guide "Push notifications" says so to users.
"""
