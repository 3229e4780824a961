"""The types of the values that pgqueue's calls return, for annotations. A program does not make them itself."""

from ._async.exchanges import AsyncExchanges
from ._async.groups import AsyncGroups, AsyncMembership, AsyncMembersWatch
from ._async.messages import AsyncMessage, AsyncMessages
from ._async.nodes import AsyncNodes
from ._async.privileges import AsyncPrivileges
from ._async.results import AsyncResults
from ._async.shards import AsyncShardedQueue
from ._async.statuses import AsyncStatuses
from ._async.watches import AsyncWatch
from ._calls.changes import Change
from ._calls.exchanges import Binding, Death, ExchangeInfo
from ._calls.groups import Member
from ._calls.messages import MessageLimits, MessageStats
from ._calls.nodes import Node, NodeEvent
from ._calls.pick import TaskStats
from ._calls.privileges import Privilege, Verb
from ._calls.queue import QueueInfo
from ._calls.results import Outcome
from ._calls.stats import Stats
from ._records.messages import MessagePage
from ._sync.exchanges import Exchanges
from ._sync.groups import Groups, Membership, MembersWatch
from ._sync.messages import Message, Messages
from ._sync.nodes import Nodes
from ._sync.privileges import Privileges
from ._sync.results import Results
from ._sync.shards import ShardedQueue
from ._sync.statuses import Statuses
from ._sync.watches import Watch

__all__ = [
    "AsyncExchanges",
    "AsyncGroups",
    "AsyncMembersWatch",
    "AsyncMembership",
    "AsyncMessage",
    "AsyncMessages",
    "AsyncNodes",
    "AsyncPrivileges",
    "AsyncResults",
    "AsyncShardedQueue",
    "AsyncStatuses",
    "AsyncWatch",
    "Binding",
    "Change",
    "Death",
    "ExchangeInfo",
    "Exchanges",
    "Groups",
    "Member",
    "MembersWatch",
    "Membership",
    "Message",
    "MessageLimits",
    "MessagePage",
    "MessageStats",
    "Messages",
    "Node",
    "NodeEvent",
    "Nodes",
    "Outcome",
    "Privilege",
    "Privileges",
    "QueueInfo",
    "Results",
    "ShardedQueue",
    "Stats",
    "Statuses",
    "TaskStats",
    "Verb",
    "Watch",
]
