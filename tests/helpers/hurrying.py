"""Clients that become impatient.

A client with a `connect_timeout` of half a second fails at its first connection when the machine stalls for as long. So
a test whose server is there connects with the default, and has the client hurry from then on.
"""

from __future__ import annotations

from typing import Any

from shells import unwrapped


def hurry(client: Any, **settings: float) -> None:
    """From now on the client has these settings, in seconds, also in the connections that it has."""
    shell = unwrapped(client).shell
    for name, seconds in settings.items():
        object.__setattr__(shell.core.settings, name, seconds)
    shell.core.patience = shell.core.settings.patience
    for pool in shell.connections._pools.values():
        pool._times = type(pool._times)(shell.core.settings)
