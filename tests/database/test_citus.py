"""pgqueue on the nodes of Citus: each has a pgqueue of its own.

These tests need a PostgreSQL that has Citus, and are skipped elsewhere: --pg=system:BINDIR. The statements that Citus
sends to other nodes come as notices.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from citus import Nodes, has_citus, nodes
from eventually import eventually
from servers import Server
from statements import column, value

import pgqueue
from pgqueue import migrate
from pgqueue.errors import SchemaError

pytestmark = pytest.mark.slow

PROPAGATION = "SHOW citus.enable_ddl_propagation"
keys = itertools.count(1)


@pytest.fixture(scope="module")
def started(pg_server: Server, request: pytest.FixtureRequest) -> Iterator[Nodes]:
    """Nodes without pgqueue's schema."""
    if not has_citus(pg_server):
        pytest.skip("this PostgreSQL has no Citus: pg_available_extensions")
    _, _, bindir = request.config.getoption("--pg").partition(":")
    with nodes(Path(bindir) if bindir else None) as started:
        yield started


@pytest.fixture(scope="module")
def cluster(started: Nodes) -> Nodes:
    """Nodes with the schema, the coordinator first, and a distributed table."""
    migrate.up(started.coordinator)
    with psycopg.connect(started.coordinator, autocommit=True) as conn:
        conn.execute("CREATE TABLE orders (id bigint PRIMARY KEY, note text)")
        conn.execute("SELECT create_distributed_table('orders', 'id')")
        conn.execute("CREATE TABLE together (n int)")
        conn.execute("SELECT citus_add_local_table_to_metadata('together')")
    for number, dsn in enumerate(started.all, 1):
        with psycopg.connect(dsn, autocommit=True) as conn:
            before = value(conn, "SELECT to_regnamespace('pgqueue') IS NOT NULL")
            assert before is (dsn == started.coordinator)
        migrate.up(dsn, server=number)
    return started


@pytest.fixture
def coordinator(cluster: Nodes) -> Iterator[psycopg.Connection]:
    with psycopg.connect(cluster.coordinator, autocommit=True) as conn:
        yield conn


def test_each_node_is_migrated_by_itself(cluster: Nodes) -> None:
    """The coordinator handed the workers a schema without tables, which their own migration refused."""
    for number, dsn in enumerate(cluster.all, 1):
        assert migrate.status(dsn).state == "up to date"
        with pgqueue.Client(dsn) as client:
            task = client.queue("each").put(number)
            assert task.id >> 43 == number
            taken = client.queue("each").take(5)
            assert (taken.id, taken.data) == (task.id, number)
            taken.ack()


def test_an_upgrade_reaches_no_other_node(cluster: Nodes) -> None:
    for dsn in cluster.all:
        migrate.up(dsn)
        assert migrate.status(dsn).state == "up to date"


def test_a_transaction_goes_on_with_the_setting_that_it_had(cluster: Nodes) -> None:
    for setting in ("on", "off"):
        with psycopg.connect(cluster.coordinator) as conn:
            conn.execute(f"SET citus.enable_ddl_propagation = {setting}")
            migrate.up(connection=conn)
            assert value(conn, PROPAGATION) == setting
            value(conn, "SELECT pgqueue.grant_to('pg_monitor', '{put}')")
            assert value(conn, PROPAGATION) == setting
            conn.rollback()


def test_a_grant_is_for_one_node(cluster: Nodes, coordinator: psycopg.Connection) -> None:
    role = f"app_{uuid.uuid4().hex[:8]}"
    may = "SELECT has_function_privilege(%s, 'pgqueue.kick(text, int, boolean)', 'EXECUTE')"
    coordinator.execute(f"CREATE ROLE {role}")  # on all nodes: Citus hands on roles
    try:
        for granted, dsn in enumerate(cluster.all, 1):
            with psycopg.connect(dsn, autocommit=True) as conn:
                conn.execute("SELECT pgqueue.grant_to(%s::regrole)", [role])
            found = []
            for other in cluster.all:
                with psycopg.connect(other, autocommit=True) as conn:
                    found.append(value(conn, may, role))
            assert found == [True] * granted + [False] * (len(found) - granted)
    finally:
        for dsn in cluster.all:
            with psycopg.connect(dsn, autocommit=True) as conn:
                conn.execute("SELECT pgqueue.revoke_from(%s::regrole)", [role])
        coordinator.execute(f"DROP ROLE {role}")


def test_a_refusal_to_go_down_names_what_depends(cluster: Nodes, coordinator: psycopg.Connection) -> None:
    coordinator.execute("SET citus.enable_ddl_propagation = off")
    coordinator.execute("CREATE VIEW backlog AS SELECT queue, ready FROM pgqueue.stats")
    try:
        with pytest.raises(SchemaError, match="backlog"):
            migrate.down(cluster.coordinator, revision="base", force=True)
    finally:
        coordinator.execute("DROP VIEW backlog")


def sent(conn: psycopg.Connection, *before: str) -> list[str]:
    """What Citus sends at the commit of a transaction that writes an order, and puts a task."""
    notices: list[str] = []
    conn.add_notice_handler(lambda notice: notices.append(str(notice.message_primary)))
    conn.execute("SET citus.log_remote_commands = on")
    conn.execute("SET client_min_messages = log")
    with conn.transaction():
        conn.execute("INSERT INTO orders VALUES (%s, 'new')", [next(keys)])
        for statement in before:
            conn.execute(statement)
        conn.execute("SELECT pgqueue.put('orders', '1')")
        notices.clear()
    return [word for notice in notices for word in ("PREPARE TRANSACTION", "COMMIT") if f"issuing {word}" in notice]


def test_a_local_write_of_citus_has_the_transaction_commit_in_two_phases(cluster: Nodes) -> None:
    """Without it the order is committed on its node before the task is here: between them a crash loses the task."""
    with psycopg.connect(cluster.coordinator, autocommit=True) as conn:
        assert sent(conn)[0] == "COMMIT"
    with psycopg.connect(cluster.coordinator, autocommit=True) as conn:
        assert sent(conn, "DELETE FROM together")[0] == "PREPARE TRANSACTION"


NODE_OF = """
    SELECT n.nodename FROM pg_dist_placement p JOIN pg_dist_node n USING (groupid)
    WHERE p.shardid = get_shard_id_for_distribution_column('orders', %s::bigint)"""
PLACE_ORDER = """
    CREATE FUNCTION place_order(order_id bigint, note text) RETURNS bigint LANGUAGE plpgsql AS $$
    BEGIN
        INSERT INTO orders VALUES (order_id, note);
        RETURN (SELECT id FROM pgqueue.put('placed', to_jsonb(order_id)));
    END $$"""


@pytest.fixture(scope="module")
def delegated(cluster: Nodes) -> None:
    for dsn in cluster.workers:
        with psycopg.connect(dsn, autocommit=True) as conn:
            conn.execute("SELECT pgqueue.create_queue('placed')")
    with psycopg.connect(cluster.coordinator, autocommit=True) as conn:
        conn.execute(PLACE_ORDER)
        conn.execute(
            "SELECT create_distributed_function('place_order(bigint, text)', 'order_id', colocate_with := 'orders',"
            " force_delegation := true)"
        )


@pytest.mark.usefixtures("delegated")
def test_a_function_puts_beside_the_row(cluster: Nodes, coordinator: psycopg.Connection) -> None:
    """It runs on the node of the row, so row and task are one local transaction, and the id names that node."""
    placed = {order: value(coordinator, "SELECT place_order(%s::bigint, 'new')", order) for order in range(1000, 1020)}
    for number, dsn in enumerate(cluster.workers, 2):
        with psycopg.connect(dsn, autocommit=True) as conn:
            here = set(column(conn, "SELECT id FROM pgqueue.tasks WHERE queue = 'placed'"))
            node = value(conn, "SELECT nodename FROM pg_dist_node JOIN pg_dist_local_group USING (groupid)")
        assert here == {id for order, id in placed.items() if value(coordinator, NODE_OF, order) == node}
        assert {id >> 43 for id in here} == {number}


@pytest.mark.usefixtures("delegated")
def test_a_delegated_put_wakes_a_taker(cluster: Nodes, coordinator: psycopg.Connection, threads) -> None:
    with pgqueue.Client(cluster.workers[0], poll=None) as client:
        queue = client.queue("placed")
        while queue.take(0):
            pass
        taken = threads.submit(queue.take, 30)
        waits = "SELECT pgqueue._is_awaited(id) FROM pgqueue.queue WHERE name = 'placed'"
        with psycopg.connect(cluster.workers[0], autocommit=True) as conn:
            eventually(lambda: value(conn, waits))
        for order in range(2000, 2020):
            coordinator.execute("SELECT place_order(%s::bigint, 'new')", [order])
        assert taken.result(30)


def test_a_cluster_has_the_nodes_with_shards_and_follows_the_catalogue(cluster: Nodes) -> None:
    with pgqueue.Cluster.from_citus(cluster.coordinator, retry=0.2) as members:
        queue = members.queue("of the catalogue")
        assert {queue.put(n).id >> 43 for n in range(4)} == {2, 3}
        with psycopg.connect(cluster.coordinator, autocommit=True) as conn:
            conn.execute(
                "SELECT citus_set_node_property(nodename, nodeport, 'shouldhaveshards', true)"
                " FROM pg_dist_node WHERE groupid = 0"
            )
            try:
                eventually(lambda: len(members.clients) == 3)
                assert {queue.put(n).id >> 43 for n in range(6)} == {1, 2, 3}
            finally:
                conn.execute(
                    "SELECT citus_set_node_property(nodename, nodeport, 'shouldhaveshards', false)"
                    " FROM pg_dist_node WHERE groupid = 0"
                )
        eventually(lambda: len(members.clients) == 2)
