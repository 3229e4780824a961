"""The connection of one call, from the pool and back to it. The duty (duties.py) of a call of the blocking client."""

from __future__ import annotations

from typing import Protocol

from .duties import Duties
from .front import Front
from .own import OwnConn


class Lender(Protocol):
    """A pool (pools.py)."""

    front: Front[OwnConn]

    def hand_back(self, lending: Lending) -> None: ...


class Home(Protocol):
    """The pools of a client (connections.py)."""

    duties: Duties

    def drop_if_silent(self, conn: OwnConn) -> None: ...


class Lending:
    """`lent` has the connection while the call has it. Each step that moves it in or out moves it as a whole.

    A call that is interrupted while it waits for a connection leaves a thread behind, which still gets one. That thread
    T1 puts it in `lent`, and then looks whether the call is `over`; the thread T2 that ends the call sets `over`, and
    then empties `lent`. So at least one of T1 and T2 sees the connection.

    A connection that is not `fit` is closed. It is not fit while it is in a pipeline: an interrupt in the end of
    psycopg's pipeline can leave it without the message that ends the pipeline for the server. It looks idle then, and
    the next put on it would be part of the interrupted transaction, and be rolled back with it.
    """

    over = False
    fit = True

    def __init__(self, home: Home, pool: Lender) -> None:
        self.home = home
        self.pool = pool
        self.lent: list[OwnConn] = []

    def keep(self) -> None:
        """The call has ended in order: put the connection in front of its pool, or into the pool itself."""
        if self.lent:
            self.pool.front.keep(self.lent)
        if self.lent:
            self.pool.hand_back(self)

    def give_back(self) -> None:
        """The call has ended in some way: return the connection to the pool."""
        self.over = True
        if self.lent:
            self.pool.hand_back(self)

    fulfil = give_back
