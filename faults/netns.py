"""A network namespace, joined to this machine's by a pair of interfaces. For root on Linux.

The processes of the load live in the namespace, and reach the server through a proxy on the outer end of the pair: the
server itself listens on its Unix socket only. When the outer end is down, packets are lost without a word, as with a
pulled cable: the kernel's own timeouts and retransmissions are part of the test.
"""

from __future__ import annotations

import ctypes
import os
import secrets
import shutil
import subprocess

CLONE_NEWNET = 0x40000000


def missing() -> str | None:
    """Why there can be no namespace here; None if there can."""
    if not hasattr(os, "geteuid") or os.geteuid() != 0:
        return "network namespaces need root"
    if shutil.which("ip") is None:
        return "network namespaces need the command ip (iproute2)"
    probe = f"pgq-{secrets.token_hex(3)}"
    made = subprocess.run(["ip", "netns", "add", probe], capture_output=True, text=True)
    if made.returncode != 0:
        return f"network namespaces are not allowed here: {made.stderr.strip()}"
    subprocess.run(["ip", "netns", "delete", probe], check=True)
    return None


def enter(name: str) -> None:
    """Move this process into a namespace. (os.setns is of Python 3.12.)"""
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = os.open(f"/run/netns/{name}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        if libc.setns(descriptor, CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), f"cannot enter the network namespace {name}")
    finally:
        os.close(descriptor)


class Namespace:
    """A namespace with one way out. `address` is that of the outer end."""

    def __init__(self) -> None:
        token = secrets.token_hex(3)
        self.name = f"pgq-{token}"
        self._outer, inner = f"pgqo{token}", f"pgqi{token}"
        net = f"169.254.{secrets.randbelow(250) + 1}"  # link-local: no router passes these on
        block = secrets.randbelow(60) * 4
        self.address, inside = f"{net}.{block + 1}", f"{net}.{block + 2}"
        _ip("netns", "add", self.name)
        try:
            _ip("link", "add", self._outer, "type", "veth", "peer", "name", inner, "netns", self.name)
            _ip("address", "add", f"{self.address}/30", "dev", self._outer)
            _ip("link", "set", self._outer, "up")
            _ip("-n", self.name, "address", "add", f"{inside}/30", "dev", inner)
            for device in ("lo", inner):
                _ip("-n", self.name, "link", "set", device, "up")
        except BaseException:
            self.close()
            raise

    def cut(self) -> None:
        _ip("link", "set", self._outer, "down")

    def mend(self) -> None:
        _ip("link", "set", self._outer, "up")

    def close(self) -> None:
        """The pair goes with the namespace, once no process is in it."""
        subprocess.run(["ip", "link", "delete", self._outer], capture_output=True)
        subprocess.run(["ip", "netns", "delete", self.name], capture_output=True)


def _ip(*words: str) -> None:
    done = subprocess.run(["ip", *words], capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"ip {' '.join(words)}: {done.stderr.strip()}")
