"""The two shells are one interface: the same names, parameters, defaults and docstrings, but for `await`."""

import inspect

import pytest

import pgqueue
from pgqueue.monitors.alerts import Alert, Monitor
from pgqueue.monitors.graphite import GraphiteReporter
from pgqueue.monitors.prometheus import PgqueueCollector

PAIRS = [
    (pgqueue.Client, pgqueue.AsyncClient),
    (pgqueue.Queue, pgqueue.AsyncQueue),
    (pgqueue.Task, pgqueue.AsyncTask),
    (pgqueue.Subscription, pgqueue.AsyncSubscription),
    (pgqueue.Lock, pgqueue.AsyncLock),
    (pgqueue.Election, pgqueue.AsyncElection),
    (pgqueue.Watch, pgqueue.AsyncWatch),
    (pgqueue.Membership, pgqueue.AsyncMembership),
    (pgqueue.MembersWatch, pgqueue.AsyncMembersWatch),
    (pgqueue.Claim, pgqueue.AsyncClaim),
    (pgqueue.Shards, pgqueue.AsyncShards),
    (pgqueue.ShardedQueue, pgqueue.AsyncShardedQueue),
    (pgqueue.WatchList, pgqueue.AsyncWatchList),
]
ONLY_BLOCKING = {"aio"}  # the way from one to the other


def public(kind):
    return {name for name in dir(kind) if not name.startswith("_")}


def parameters(function):
    return [(p.name, p.kind, p.default) for p in inspect.signature(function).parameters.values()]


@pytest.mark.parametrize(("blocking", "awaiting"), PAIRS)
def test_same_names(blocking, awaiting):
    assert public(blocking) - public(awaiting) <= ONLY_BLOCKING
    assert public(awaiting) <= public(blocking)


@pytest.mark.parametrize(("blocking", "awaiting"), PAIRS)
def test_same_parameters_and_docstrings(blocking, awaiting):
    assert blocking.__doc__ == awaiting.__doc__
    assert parameters(blocking) == parameters(awaiting)
    for name in sorted(public(awaiting)):
        one, other = getattr(blocking, name), getattr(awaiting, name)
        if callable(one):
            assert parameters(one) == parameters(other), name
            assert one.__doc__ == other.__doc__, name


SINGLE = [pgqueue.Worker, Alert, GraphiteReporter, Monitor, PgqueueCollector]


@pytest.mark.parametrize("kind", [kind for pair in PAIRS for kind in pair] + SINGLE)
def test_everything_public_is_explained(kind):
    assert kind.__doc__
    for name in sorted(public(kind)):
        member = inspect.getattr_static(kind, name)
        if callable(member) or isinstance(member, property):
            assert member.__doc__, f"{kind.__name__}.{name}"


def test_all_is_complete_and_sorted():
    assert pgqueue.__all__ == sorted(pgqueue.__all__)
    errors = {
        name for name, kind in vars(pgqueue.errors).items() if inspect.isclass(kind) and issubclass(kind, Exception)
    }
    assert errors - {"SessionDead"} <= set(pgqueue.__all__)
