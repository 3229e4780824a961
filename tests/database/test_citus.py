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


def on_another_node(conn: psycopg.Connection) -> int:
    """The key of an order that is on another node."""
    here = "SELECT nodename FROM pg_dist_node JOIN pg_dist_local_group USING (groupid)"
    node = value(conn, here)
    return next(key for key in keys if value(conn, NODE_OF, key) != node)


def sent(conn: psycopg.Connection, *statements: str) -> str:
    """What Citus sends first at the commit of a transaction."""
    notices: list[str] = []
    conn.add_notice_handler(lambda notice: notices.append(str(notice.message_primary)))
    conn.execute("SET citus.log_remote_commands = on")
    conn.execute("SET client_min_messages = log")
    with conn.transaction():
        for statement in statements:
            conn.execute(statement)
        notices.clear()
    words = (word for notice in notices for word in ("PREPARE TRANSACTION", "COMMIT") if f"issuing {word}" in notice)
    return next(words, "nothing")


CALLS = {
    "put": "SELECT id FROM pgqueue.put('orders', '1')",
    "put_many": "SELECT pgqueue.put_many('orders', '[1, 2]')",
    "ack": "SELECT * FROM pgqueue.ack({task})",
    "bury": "SELECT * FROM pgqueue.bury({task})",
    "set_status": "SELECT pgqueue.set_status('citus', '1')",
}


@pytest.mark.parametrize("node", range(3))
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("first", ["call", "row"])
def test_a_transaction_with_a_row_of_another_node_commits_in_two_phases(
    cluster: Nodes, node: int, call: str, first: str
) -> None:
    """Without that the order is committed on its node before the task is here: a crash in between loses the task."""
    with psycopg.connect(cluster.all[node], autocommit=True) as conn:
        for setting, expected in (("off", "COMMIT"), ("", "PREPARE TRANSACTION")):
            conn.execute(CALLS["put"])
            task = value(conn, "SELECT id FROM pgqueue.take('orders')")
            statements = [CALLS[call].format(task=task), f"INSERT INTO orders VALUES ({on_another_node(conn)}, 'new')"]
            ordered = statements if first == "call" else statements[::-1]
            assert sent(conn, f"SET LOCAL pgqueue.two_phase = '{setting}'", *ordered) == expected


def test_a_savepoint_that_is_rolled_back_leaves_two_phases(cluster: Nodes) -> None:
    for dsn in cluster.all:
        with psycopg.connect(dsn, autocommit=True) as conn:
            order = f"INSERT INTO orders VALUES ({on_another_node(conn)}, 'new')"
            put = CALLS["put"]
            assert sent(conn, "SAVEPOINT s", put, "ROLLBACK TO s", put, order) == "PREPARE TRANSACTION"


def test_a_node_without_shards_commits_in_two_phases(cluster: Nodes, coordinator: psycopg.Connection) -> None:
    """For example one that was added, before the shards are moved."""
    moved = column(coordinator, SHARDS_OF_THIRD)
    one, other = (address(dsn) for dsn in cluster.workers)
    try:
        for shard in moved:
            coordinator.execute(MOVE, [shard, *other, *one])
        with psycopg.connect(cluster.workers[1], autocommit=True) as conn:
            order = f"INSERT INTO orders VALUES ({on_another_node(conn)}, 'new')"
            assert sent(conn, CALLS["put"], order) == "PREPARE TRANSACTION"
    finally:
        for shard in moved:
            coordinator.execute(MOVE, [shard, *one, *other])


MOVE = "SELECT citus_move_shard_placement(%s::bigint, %s::text, %s::int, %s::text, %s::int, 'block_writes')"
SHARDS_OF_THIRD = """
    SELECT shardid FROM pg_dist_shard JOIN pg_dist_placement USING (shardid)
    WHERE logicalrelid = 'pgqueue_citus.node'::regclass AND groupid = 2"""


def address(dsn: str) -> list[object]:
    with psycopg.connect(dsn) as conn:
        return [conn.info.host, conn.info.port]


def test_connections_of_pgqueue_write_to_no_table_of_citus(cluster: Nodes) -> None:
    with psycopg.connect(cluster.coordinator, options="-c pgqueue.direct=yes") as conn:
        conn.execute(CALLS["put"])
        assert not value(conn, "SELECT current_setting('pgqueue.two_phase', true)")
    with psycopg.connect(cluster.coordinator) as conn:
        conn.execute(CALLS["put"])
        assert value(conn, "SELECT current_setting('pgqueue.two_phase', true)") == "done"


def test_a_transaction_that_its_client_prepares(cluster: Nodes, coordinator: psycopg.Connection) -> None:
    """Citus refuses that to a transaction that it coordinates."""
    with pytest.raises(psycopg.errors.FeatureNotSupported, match="cannot use 2PC"):
        coordinator.execute("BEGIN; SELECT pgqueue.put('orders', '1'); PREPARE TRANSACTION 'refused'")
    coordinator.execute("ROLLBACK")
    coordinator.execute("BEGIN; SET LOCAL pgqueue.two_phase = off; SELECT pgqueue.put('orders', '1')")
    coordinator.execute("PREPARE TRANSACTION 'allowed'")
    coordinator.execute("COMMIT PREPARED 'allowed'")


def test_the_coordinator_is_migrated_first(started: Nodes) -> None:
    with psycopg.connect(started.workers[0]) as conn:
        conn.execute("SET citus.enable_ddl_propagation = off")
        conn.execute("DROP SCHEMA IF EXISTS pgqueue_citus CASCADE")
        with pytest.raises(SchemaError, match="migrate the coordinator first"):
            migrate.up(connection=conn)
        conn.rollback()


def test_a_schema_of_another_role_is_refused(cluster: Nodes, coordinator: psycopg.Connection) -> None:
    """Its owner could give its functions another body, which would run with the rights of pgqueue's owner."""
    with psycopg.connect(cluster.coordinator) as conn:
        conn.execute("SET LOCAL citus.enable_ddl_propagation = off")
        conn.execute("ALTER SCHEMA pgqueue_citus OWNER TO pg_monitor")
        with pytest.raises(SchemaError, match="pgqueue_citus does not belong to the owner"):
            migrate.up(connection=conn)
        conn.rollback()


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
