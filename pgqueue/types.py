"""The types of the values that pgqueue's calls return, for annotations. A program does not make them itself."""

from ._async.audit import AsyncAudit
from ._async.batches import AsyncBatches
from ._async.cancellation import AsyncCancellation
from ._async.cluster import AsyncClusterBatches, AsyncClusterLimits, AsyncClusterPrivileges, AsyncClusterResults
from ._async.cluster_queue import AsyncClusterQueue
from ._async.exchanges import AsyncExchanges
from ._async.groups import AsyncGroups, AsyncMembership, AsyncMembersWatch
from ._async.limits import AsyncLimits
from ._async.messages import AsyncMessage, AsyncMessages
from ._async.nodes import AsyncNodes
from ._async.privileges import AsyncPrivileges
from ._async.results import AsyncResults
from ._async.schedules import AsyncClock, AsyncSchedules
from ._async.session import AsyncSession
from ._async.statuses import AsyncStatuses
from ._async.watches import AsyncWatch
from ._calls.attempts import Attempt
from ._calls.audit import Deed
from ._calls.changes import Change
from ._calls.exchanges import Binding, Death, ExchangeInfo
from ._calls.flows import BatchInfo
from ._calls.groups import Member
from ._calls.history import QueuePeriod
from ._calls.limits import Limit
from ._calls.messages import MessageLimits, MessageStats
from ._calls.nodes import Node, NodeEvent
from ._calls.pick import TaskStats
from ._calls.privileges import Privilege, Verb
from ._calls.queue import QueueInfo
from ._calls.results import Outcome
from ._calls.schedules import Declared, Missed, ScheduleInfo
from ._calls.stats import Stats
from ._calls.tallies import JobStats
from ._calls.workers import WorkerInfo
from ._records.messages import MessagePage
from ._records.task import TaskPage
from ._sync.audit import Audit
from ._sync.batches import Batches
from ._sync.cancellation import Cancellation
from ._sync.cluster import ClusterBatches, ClusterLimits, ClusterPrivileges, ClusterResults
from ._sync.cluster_queue import ClusterQueue
from ._sync.exchanges import Exchanges
from ._sync.groups import Groups, Membership, MembersWatch
from ._sync.limits import Limits
from ._sync.messages import Message, Messages
from ._sync.nodes import Nodes
from ._sync.privileges import Privileges
from ._sync.results import Results
from ._sync.schedules import Clock, Schedules
from ._sync.session import Session
from ._sync.statuses import Statuses
from ._sync.watches import Watch
from .jobs.job import BoundJob
from .jobs.registry import Registry
from .jobs.starts import LoopStart, Start

__all__ = [
    "AsyncAudit",
    "AsyncBatches",
    "AsyncCancellation",
    "AsyncClock",
    "AsyncClusterBatches",
    "AsyncClusterLimits",
    "AsyncClusterPrivileges",
    "AsyncClusterQueue",
    "AsyncClusterResults",
    "AsyncExchanges",
    "AsyncGroups",
    "AsyncLimits",
    "AsyncMembersWatch",
    "AsyncMembership",
    "AsyncMessage",
    "AsyncMessages",
    "AsyncNodes",
    "AsyncPrivileges",
    "AsyncResults",
    "AsyncSchedules",
    "AsyncSession",
    "AsyncStatuses",
    "AsyncWatch",
    "Attempt",
    "Audit",
    "BatchInfo",
    "Batches",
    "Binding",
    "BoundJob",
    "Cancellation",
    "Change",
    "Clock",
    "ClusterBatches",
    "ClusterLimits",
    "ClusterPrivileges",
    "ClusterQueue",
    "ClusterResults",
    "Death",
    "Declared",
    "Deed",
    "ExchangeInfo",
    "Exchanges",
    "Groups",
    "JobStats",
    "Limit",
    "Limits",
    "LoopStart",
    "Member",
    "MembersWatch",
    "Membership",
    "Message",
    "MessageLimits",
    "MessagePage",
    "MessageStats",
    "Messages",
    "Missed",
    "Node",
    "NodeEvent",
    "Nodes",
    "Outcome",
    "Privilege",
    "Privileges",
    "QueueInfo",
    "QueuePeriod",
    "Registry",
    "Results",
    "ScheduleInfo",
    "Schedules",
    "Session",
    "Start",
    "Stats",
    "Statuses",
    "TaskPage",
    "TaskStats",
    "Verb",
    "Watch",
    "WorkerInfo",
]
