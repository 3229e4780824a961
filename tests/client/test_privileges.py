"""client.privileges: what each role may do, and the error of a role that may not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from roles import Roles, made
from statements import put, value

import pgqueue
from pgqueue.errors import NotAllowed, SetupError
from pgqueue.types import Privilege


@pytest.fixture
def roles(dsn: str, db: psycopg.Connection) -> Iterator[Roles]:
    with made(dsn, db) as roles:
        yield roles


async def test_grants_are_listed_and_revoked_one_by_one(client: Any, roles: Roles) -> None:
    role = roles(name='pgqueue_test "Ö" ')
    await client.privileges.grant_to(role, ["put", "monitor"])
    await client.privileges.grant_to(role, ["take"], "mail.*")
    await client.privileges.grant("bills", role, ["look"])
    assert await client.privileges.list() == [
        Privilege(role, "put", None, "*"),
        Privilege(role, "monitor", None, "*"),
        Privilege(role, "take", None, "mail.*"),
        Privilege(role, "look", "bills", None),
    ]
    assert [one.verb for one in await client.privileges.list(role, "bills")] == ["look"]
    assert (await client.privileges.list(role))[-1].as_dict() == {
        "role": role,
        "verb": "look",
        "queue": "bills",
        "pattern": None,
    }
    assert await client.privileges.list("postgres") == []
    await client.privileges.revoke_from(role, ["put", "monitor"])
    await client.privileges.revoke("bills", role, ["look"])
    assert await client.privileges.list() == [Privilege(role, "take", None, "mail.*")]


async def test_the_defaults_are_those_of_the_functions(client: Any, roles: Roles) -> None:
    role = roles()
    await client.privileges.grant_to(role)
    assert [one.verb for one in await client.privileges.list()] == ["put", "take", "look", "manage", "share"]
    await client.privileges.revoke_from(role)
    await client.privileges.grant_to(role, pattern="a*")
    await client.privileges.grant("b", role)
    four = ["put", "take", "look", "manage"]
    assert [(one.queue, one.pattern, one.verb) for one in await client.privileges.list()] == [
        *((None, "a*", verb) for verb in four),
        *(("b", None, verb) for verb in four),
    ]
    await client.privileges.revoke_from(role, pattern="a*")
    await client.privileges.revoke("b", role)
    assert await client.privileges.list() == []


async def test_a_restricted_queue_names_its_roles(client: Any, shell: Any, roles: Roles) -> None:
    user, granted = roles("put", "take", "look", "manage"), roles()
    await client.queue("q").put(1)
    await client.privileges.grant("q", granted)
    await client.privileges.restrict("q")
    info = await client.queue("q").info()
    assert (info.granted_to, info.role) == ([granted], (await client.queue("q").info()).role)
    assert (await shell.client(roles.dsn(granted)).queue("q").take(0)).data == 1
    with pytest.raises(NotAllowed, match=f'role {user} may not put into queue "q"') as caught:
        await shell.client(roles.dsn(user)).queue("q").put(2)
    assert isinstance(caught.value, PermissionError)
    assert caught.value.hint
    assert caught.value.hint in str(caught.value)
    await client.privileges.restrict("q", False)
    assert (await client.queue("q").info()).granted_to is None
    await shell.client(roles.dsn(user)).queue("q").put(2)


async def test_a_function_of_another_verb_is_refused_with_a_hint(
    shell: Any, roles: Roles, db: psycopg.Connection
) -> None:
    put(db, "q")
    taker = shell.client(roles.dsn(roles("take")))
    with pytest.raises(NotAllowed, match=r"permission denied for function put\. .*grant_to"):
        await taker.queue("q").put(1)
    with pytest.raises(NotAllowed, match="grant_to"):
        await taker.privileges.grant_to("postgres")
    conn = await shell.connection()
    await conn.execute(f"SET ROLE {roles('take')}")
    with pytest.raises(NotAllowed, match="grant_to"):
        await shell.client().queue("q").put(1, conn=conn)


async def test_only_the_owner_grants(shell: Any, roles: Roles) -> None:
    user = roles("put", "take", "look", "manage", "share", "monitor")
    client = shell.client(roles.dsn(user))
    for call in (
        client.privileges.grant_to(user),
        client.privileges.revoke_from(user),
        client.privileges.grant("q", user),
        client.privileges.restrict("q"),
    ):
        with pytest.raises(NotAllowed):
            await call


async def test_a_role_sees_its_own_privileges_and_a_monitor_sees_all(shell: Any, roles: Roles) -> None:
    one, other = roles("put"), roles("monitor")
    assert {p.role for p in await shell.client(roles.dsn(one)).privileges.list()} == {one}
    assert {p.role for p in await shell.client(roles.dsn(other)).privileges.list()} == {one, other}


@pytest.mark.once
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda p: p.grant_to("r", ["read"]), "a verb is one of"),
        (lambda p: p.grant_to("r", "put"), "a list of verbs"),
        (lambda p: p.grant_to("r" * 64), "63 bytes"),
        (lambda p: p.grant_to(""), "63 bytes"),
        (lambda p: p.grant_to(7), "a string"),
        (lambda p: p.grant_to("a\0b"), "NUL"),
        (lambda p: p.grant_to("postgres", pattern=None), "a pattern is a string"),
        (lambda p: p.grant("", "r"), "1 to 200"),
        (lambda p: p.restrict("q", 1), "True or False"),
        (lambda p: p.list(queue=""), "1 to 200"),
    ],
)
def test_wrong_arguments_are_refused_before_anything_is_sent(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call(pgqueue.Client("postgresql:///nowhere").privileges)


async def test_the_server_refuses_what_only_it_can_know(client: Any, roles: Roles, db: psycopg.Connection) -> None:
    role = roles()
    for call in (
        client.privileges.grant_to(role, ["share"], "a*"),
        client.privileges.grant("q", role, ["share"]),
        client.privileges.grant_to(role, []),
        client.privileges.grant_to(role, pattern=""),
        client.privileges.grant_to(role, pattern="x" * 201),
    ):
        with pytest.raises(ValueError, match=r"the verbs of this grant are|1 to 200"):
            await call
    with pytest.raises(ValueError, match="no_such_role"):
        await client.privileges.grant_to("no_such_role")
    with pytest.raises(pgqueue.NoQueue):
        await client.privileges.revoke("no such queue", role)
    assert value(db, "SELECT count(*) FROM pgqueue.privilege") == 0


async def test_a_role_with_a_hostile_name_gets_a_statement_that_works(shell: Any, roles: Roles, db: Any) -> None:
    role = roles(name='o\'Brien "x" ')
    with pytest.raises(SetupError) as caught:
        await shell.client(roles.dsn(role)).queue("q").put(1)
    db.execute(str(caught.value).partition(" run ")[2])
    await shell.client(roles.dsn(role)).queue("q").put(1)
