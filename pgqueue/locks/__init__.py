"""Locks and elections: how one is asked for and held (holding), what users see of it (locking), leaders (electing)."""

from .electing import AsyncElection, Election
from .locking import AsyncLock, AsyncLocking, Lock, Locking

__all__ = ["AsyncElection", "AsyncLock", "AsyncLocking", "Election", "Lock", "Locking"]
