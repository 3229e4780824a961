"""Messages between a worker and its child processes: JSON with its length before it, over a socket pair.

Bytes are in it as in the data of a task (_values/marked.py).

JSON and not pickle: the messages of a handler's process are data for its worker, and never code.
"""

from __future__ import annotations

import json
import socket
import struct
import threading
from typing import Any

from .._values import marked

SIZE = struct.Struct("!I")
CHUNK = 1 << 16


class Frames:
    """One end of a socket pair. Any thread may send; one receives."""

    def __init__(self, sock: socket.socket) -> None:
        self.socket = sock
        self._lock = threading.Lock()
        self._received = bytearray()

    def send(self, message: Any) -> None:
        """Raises OSError: the other end is gone. TypeError, ValueError: JSON cannot hold the message."""
        text = json.dumps(message, default=marked.written)
        if marked.MARK in text and marked.is_in(message):
            raise ValueError(f"an object with the one key {marked.BYTES} or {marked.TEXT} stands for bytes or a text")
        sent = text.encode()
        with self._lock:
            self.socket.sendall(SIZE.pack(len(sent)) + sent)

    def receive(self) -> Any:
        """The next message, or None at the end of the stream. Waits."""
        while (message := self.next()) is None:
            if not self.fill():
                return None
        return message

    def next(self) -> Any:
        """The next message that has arrived as a whole, or None."""
        held = self._received
        if len(held) < SIZE.size or len(held) < (end := SIZE.size + SIZE.unpack_from(held)[0]):
            return None
        text = bytes(held[SIZE.size : end]).decode()
        del held[:end]
        message = json.loads(text)
        return marked.restored(message) if marked.MARK in text else message

    def fill(self) -> bool:
        """Read the bytes that have arrived, or wait for some. False at the end of the stream."""
        try:
            data = self.socket.recv(CHUNK)
        except OSError:  # ECONNRESET: the other end is gone, and did not read all
            return False
        self._received += data
        return bool(data)
