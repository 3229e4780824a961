"""A caller who uses SQLAlchemy: each driver, and a session, a scoped session or a connection of it.

A test is written once: `await done(...)` awaits what an awaiting library returns, and takes what a blocking one did.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import sqlalchemy
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker
from sqlalchemy.pool import NullPool

import pgqueue
from pgqueue.contrib.sqlalchemy import url

BLOCKING = ["psycopg", "psycopg2"]
AWAITING = ["psycopg_async", "asyncpg"]
DRIVERS = BLOCKING + AWAITING
KINDS = ["session", "scoped session", "connection"]


async def done(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


@dataclass
class Caller:
    """A client, and a connection of the caller's own that goes with it."""

    driver: str
    client: Any
    engine: Any
    conn: Any

    async def execute(self, sql: str, **values: object) -> Any:
        return await done(self.conn.execute(sqlalchemy.text(sql), values))

    async def rollback(self) -> None:
        await done(self.conn.rollback())

    async def commit(self) -> None:
        await done(self.conn.commit())

    async def savepoint(self) -> Any:
        return await done(self.conn.begin_nested())


def engine(driver: str, dsn: str, **options: Any) -> Any:
    make = create_async_engine if driver in AWAITING else sqlalchemy.create_engine
    return make(url(dsn, driver=driver), poolclass=NullPool, **options)


def connection(kind: str, engine: Any) -> Any:
    """What a caller would hand over; an AsyncConnection is to be awaited first."""
    blocking = isinstance(engine, sqlalchemy.Engine)
    if kind == "connection":
        return engine.connect()
    if kind == "session":
        return Session(engine) if blocking else AsyncSession(engine)
    if blocking:
        return scoped_session(sessionmaker(engine))
    return async_scoped_session(async_sessionmaker(engine), scopefunc=asyncio.current_task)


@asynccontextmanager
async def caller(driver: str, kind: str, dsn: str, **options: Any) -> AsyncIterator[Caller]:
    """Closed at the end of the block, with whatever it did not commit."""
    awaiting = driver in AWAITING
    client = pgqueue.AsyncClient(dsn, poll=None) if awaiting else pgqueue.Client(dsn, poll=None)
    theirs = engine(driver, dsn, **options)
    conn = connection(kind, theirs)
    if awaiting and kind == "connection":
        conn = await conn
    try:
        yield Caller(driver, client, theirs, conn)
    finally:
        await done(conn.close())
        await done(theirs.dispose())
        await done(client.close())
