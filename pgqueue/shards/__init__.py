"""One queue over several servers, for more than one can carry: Shards and ShardedQueue, in both shells.

There is no coordinator, and no server knows of the others: each has a whole pgqueue of its own. A task is put on the
server that its shard key names, or on the next one that can be reached; takers take from all of them, wherever a task
came to lie. So a server that fails holds up its own tasks and nothing else, and no task has to move when servers come
and go.

    servers.py     who is asked, in which order, and who rests after a failure
    flows.py       a put that fails over, a take from all: generators, for both shells
    races.py       a wait at all servers at once, in threads or in coroutines
    sharded.py     the two shells

What one server promises (order, lanes, keys, capacities, an ack that hands on) holds on that server and not across
them; and what lies on a dead server waits until that is back. docs/guides/push.md says so to users.
"""

from .servers import ShardKey
from .sharded import AsyncShardedQueue, AsyncShards, ShardedQueue, Shards

__all__ = ["AsyncShardedQueue", "AsyncShards", "ShardKey", "ShardedQueue", "Shards"]
