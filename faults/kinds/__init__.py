"""The faults, by name. Each is one function: it does the harm, waits, ends it, and returns: everyone may recover."""

from __future__ import annotations

from .. import machines, netns, pgbouncer
from . import machine, network, poolers, processes, server, standby, tables
from .fault import Fault, Scene, calm

__all__ = ["FAULTS", "Fault", "Scene", "calm", "missing"]

TAKES, LOCKS, COMMITS, DELAYS = "takes", "locks", "commits", "delays"
BROKEN = frozenset({TAKES, LOCKS})  # what broken connections may cost

FAULTS = {
    fault.name: fault
    for fault in (
        Fault("kill", "plain", processes.kill, waits=False),
        Fault("stop", "plain", processes.stop, BROKEN, seconds=2),
        Fault("restart-fast", "plain", server.restart_fast, BROKEN),
        Fault("restart-immediate", "plain", server.restart_immediate, BROKEN),
        Fault("terminate-all", "plain", server.terminate_all, BROKEN),
        Fault("terminate-some", "plain", server.terminate_some, BROKEN),
        Fault("terminate-listeners", "plain", server.terminate_listeners, BROKEN),
        Fault("lock-table", "plain", tables.lock, seconds=3),
        Fault("alter-table", "plain", tables.alter, seconds=3),
        Fault("create-index", "plain", tables.create_index, seconds=3),
        Fault("vacuum-full", "plain", tables.vacuum_full),
        Fault("open-transaction", "plain", tables.open_transaction, seconds=3),
        Fault("snapshot", "plain", tables.snapshot, seconds=5),
        Fault("black-hole", "proxy", network.black_hole, BROKEN, seconds=30),
        Fault("black-hole-reset", "proxy", network.black_hole_reset, BROKEN, seconds=30),
        Fault("late", "proxy", network.late, BROKEN, seconds=3),
        Fault("delay", "proxy", network.delay, BROKEN, seconds=5),
        Fault("cut", "proxy", network.cut, BROKEN),
        Fault("halve", "proxy", network.halve, BROKEN, seconds=5),
        Fault("garble", "proxy", network.garble, BROKEN, seconds=5),
        Fault("unplug", "namespace", network.unplug, BROKEN, seconds=20),
        Fault("failover-async", "standby-async", standby.fail_over, BROKEN | {COMMITS}, prepare=standby.prepare),
        Fault("failover-sync", "standby-sync", standby.fail_over, BROKEN, prepare=standby.prepare),
        Fault("pooler-restart", "pooler-session", poolers.restart),
        Fault("pooler-kill", "pooler-session", poolers.kill),
        Fault("transaction-pooler-restart", "pooler-transaction", poolers.restart),
        Fault("transaction-pooler-kill", "pooler-transaction", poolers.kill),
        Fault("disk-full", "small-disk", machine.disk_full, BROKEN, seconds=5),
        Fault("clock-forward", "clock", machine.clock_forward, frozenset({TAKES, DELAYS}), seconds=5),
        Fault("clock-back", "clock", machine.clock_back, frozenset({TAKES}), seconds=5),
    )
}


def missing(setting: str) -> str | None:
    """Why a setting cannot be had on this machine; None if it can."""
    if setting == "namespace":
        return netns.missing()
    if setting.startswith("pooler"):
        return pgbouncer.missing()
    if setting == "small-disk":
        return machines.no_small_disk()
    if setting == "clock":
        return machines.no_clock()
    return None
