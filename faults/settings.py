"""Settings: a server, and what lies between it and the processes, for one arena."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from .crew import Way
from .machines import FalseClock, SmallDisk
from .netns import Namespace
from .pgbouncer import PgBouncer
from .proxy import Proxy
from .servers import Cluster, Foreign, Server
from .standbys import Pair

#: Settings that need no server of the rig's own.
ANYWHERE = frozenset({"plain", "proxy", "namespace", "pooler-session", "pooler-transaction"})


@dataclass
class Setting:
    """What there is; `way` is how the processes reach the server."""

    server: Server
    way: Way
    proxy: Proxy | None = None
    pooler: PgBouncer | None = None
    namespace: Namespace | None = None


@contextmanager
def provide(name: str, folder: Path, dsn: str | None, bindir: Path | None) -> Iterator[Setting]:
    """Start what the setting needs, and end it."""
    with ExitStack() as stack:
        server = _server(name, folder, dsn, bindir)
        stack.callback(server.close)
        setting = Setting(server, Way(server.dsn))
        if name == "proxy":
            setting.proxy = proxy = Proxy(server.dsn)
            stack.callback(proxy.close)
            setting.way = Way(proxy.dsn)
        elif name == "namespace":
            setting.namespace = namespace = Namespace()
            stack.callback(namespace.close)
            setting.proxy = proxy = Proxy(server.dsn, namespace.address)
            stack.callback(proxy.close)
            setting.way = Way(proxy.dsn, namespace=namespace.name)
        elif name.startswith("pooler"):
            setting.pooler = pooler = PgBouncer(folder, server.dsn, name.removeprefix("pooler-"))
            stack.callback(pooler.close)
            setting.way = Way(pooler.dsn, listen_dsn=server.dsn)
        yield setting


def _server(name: str, folder: Path, dsn: str | None, bindir: Path | None) -> Server:
    if dsn is not None:
        return Foreign(dsn)
    if name.startswith("standby"):
        return Pair(folder, bindir, synchronous=name == "standby-sync")
    if name == "small-disk":
        return SmallDisk(folder, bindir)
    if name == "clock":
        return FalseClock(folder, bindir)
    root = folder / "server"
    root.mkdir()
    root.chmod(0o711)
    return Cluster(root, bindir)
