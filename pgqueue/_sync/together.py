# Generated from pgqueue/_async/together.py by tools/blocking.py: edit that file, not this one.

"""Puts that are made at the same time share a commit. _engine/gathering.py says which of them, and how they wait."""

from __future__ import annotations

from copy import copy

from .._calls import put as calls
from .._calls.put import Placed
from .._calls.put_options import PLAIN, PutOptions
from .._engine import forks
from .._engine.blocking import (
    Connections,
    Turn,
    begin,
    current_loop,
    current_thread,
    end,
    in_turn,
    is_interruptible,
    uninterrupted,
)
from .._engine.core import Settings, lock_patience
from .._engine.gathering import Batch, Gatherings, Member, is_everyones
from .._engine.waits import TimeLeft
from ..errors import CallTimeout, ClosedError, ConnectionLost, ServerError

LONGEST = 1e6  # seconds to wait for a lock, for a client without a call_timeout
NEARLY = 0.9  # of the time for a connection: a put that has waited this long does not begin another wait


class Together:
    """The puts of one shell that are without conn, lane, key, sender and run_at, and do not wait for room."""

    def __init__(self, settings: Settings, connections: Connections) -> None:
        self._settings = settings
        self._connections = connections
        self.after_fork()
        forks.register(self)

    def put(self, queue: str, text: str, options: PutOptions) -> Placed:
        """Put a task, at once or together with others. Returns and raises as a single put."""
        gatherings, duties = self._gatherings(), self._connections.duties
        member = Member(text, gatherings)
        kind = queue if options is PLAIN else (queue, options)  # the hash of options costs a microsecond
        begin(duties, member)
        try:
            if gatherings.enter(kind, member):
                return self._connections.run(calls.put(queue, text, options))
            return self._in_turn(gatherings, member, queue, options)
        except ServerError as error:
            gatherings.scatter(member.gathering, error)
            raise
        finally:
            gatherings.leave(member)
            end(duties, member)

    def close(self) -> None:
        """Fail the puts that were not sent yet."""
        self._gatherings().close(ClosedError("the client is closed"))

    def after_fork(self) -> None:
        self._home: tuple[object, Gatherings] = (None, Gatherings(Turn, is_interruptible, current_thread))

    def _gatherings(self) -> Gatherings:
        """The puts of this loop: a coroutine cannot wait for one of another loop."""
        loop, gatherings = self._home
        if loop is not (here := current_loop()):
            gatherings = Gatherings(Turn, is_interruptible, current_thread)
            self._home = (here, gatherings)
        return gatherings

    def _in_turn(self, gatherings: Gatherings, member: Member, queue: str, options: PutOptions) -> Placed:
        left = TimeLeft(self._settings.call_timeout)
        in_time = in_turn(self._connections.duties, member.turn, left)
        if in_time and (batch := gatherings.take_lead(member)) is not None:
            uninterrupted(self._send, gatherings, batch, queue, options, left)
        if member.placed is not None:
            return member.placed
        if member.error is not None and self._is_final(member, member.error):
            raise copy(member.error) from member.error  # not itself: other threads raise it as well
        if not in_time or left.over():
            raise self._late(unknown=not in_time and member.batch is not None and member.batch.sent)
        call = calls.patient(calls.put(queue, member.text, options), _patience(left))
        return self._connections.run(call, within=left.seconds())

    def _send(self, gatherings: Gatherings, batch: Batch, queue: str, options: PutOptions, left: TimeLeft) -> None:
        """Put the tasks of a batch, and give each member its answer."""
        try:
            first = TimeLeft(self._settings.call_timeout - batch.members[0].waited())
            texts = [member.text for member in batch.members]
            call = calls.put_together(queue, texts, options, _patience(first))
            placed = self._connections.run(call, within=left.seconds())
        except Exception as error:
            gatherings.finish(batch, error=error)
        except BaseException:
            gatherings.finish(
                batch, error=ConnectionLost("the call was interrupted: whether it took effect is unknown")
            )
            raise
        else:
            gatherings.finish(batch, placed)

    def _is_final(self, member: Member, error: Exception) -> bool:
        if isinstance(error, ServerError):
            return member.waited() >= NEARLY * self._settings.patience
        return is_everyones(error)

    def _late(self, *, unknown: bool) -> CallTimeout:
        effect = "it may have taken effect" if unknown else "it was not sent, and nothing was changed"
        return CallTimeout(
            f"no answer for {self._settings.call_timeout:.3g} s, until the end of the call's call_timeout: {effect}"
        )


def _patience(left: TimeLeft) -> float:
    """Seconds for which a put that has waited for its turn waits for a lock: as long as its time allows."""
    return min(lock_patience(left.seconds() or LONGEST), LONGEST)
