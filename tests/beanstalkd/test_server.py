"""The commands, over sockets."""

from __future__ import annotations

import asyncio
import socket
import struct

import pytest
import roles
from beans import Bean
from eventually import PATIENCE, Stopwatch, soon
from hurrying import hurry
from outages import away
from statements import pass_time, value

from pgqueue.beanstalkd import Server, connection, leftovers
from pgqueue.beanstalkd.jobs import Jobs
from pgqueue.beanstalkd.protocol import Command
from pgqueue.cli.beanstalkd import bound
from pgqueue.errors import ServerError

MIDDLE = 2**31


async def waiting(bean: Bean) -> bool:
    """Whether a reserve waits."""
    return (await bean.stats())["current-waiting"] != "0"


# --- jobs and tasks


async def test_a_job_is_a_task(bean, client, db):
    await bean("use mail")
    id = await bean.put(b"to ada", priority=5, ttr=7)
    task = await client.peek(id)
    assert (task.queue, task.data, task.priority) == ("mail", "to ada", 5 - MIDDLE)
    assert value(db, "SELECT data #>> '{}' FROM pgqueue.tasks WHERE id = %s", id) == "to ada"
    assert (await client.queue("mail").task_stats(id)).ttr == 7
    assert await bean.put(b"\xff\0") > id
    assert (await client.queue("mail").take(0)).data == b"\xff\0"


async def test_a_task_of_any_program_is_a_job(bean, client, db):
    await bean("watch mail")
    await client.queue("mail").put({"to": "ada"}, priority=-MIDDLE)
    value(db, "SELECT id FROM pgqueue.put('mail', '\"from SQL\"')")
    id, body = await bean.reserve()
    assert body == b'{"to":"ada"}'
    assert await bean(f"delete {id}") == b"DELETED\r\n"
    id, body = await bean.reserve()
    assert body == b"from SQL"
    stats = await bean.stats(f"stats-job {id}")
    assert (stats["pri"], stats["ttr"]) == (str(MIDDLE), "0")


@pytest.mark.parametrize("body", [b"", b"\r\n\r\n", bytes(range(256)), b"\x01" * 65535, b"\xff" * 65535])
async def test_bodies_come_back_as_they_were(bean, body):
    await bean.put(body)
    assert (await bean.reserve())[1] == body


async def test_the_most_urgent_job_of_all_tubes_is_first(bean):
    ids = []
    for tube, priority in (("a", 2**32 - 1), ("b", 7), ("a", 0), ("b", 7), ("c", 0)):
        await bean(f"use {tube}")
        ids.append(await bean.put(priority=priority))
    await bean("watch a")
    await bean("watch b")
    taken = [(await bean.reserve())[0] for _ in range(4)]
    assert taken == [ids[2], ids[1], ids[3], ids[0]]
    assert await bean("reserve-with-timeout 0") == b"TIMED_OUT\r\n"


async def test_a_waiting_reserve_gets_what_is_put(connect):
    worker, producer = await connect(), await connect()
    worker.send(b"reserve\r\n")
    await soon(lambda: waiting(producer))
    stats = await producer.stats("stats-tube default")
    assert (stats["current-waiting"], stats["current-watching"], stats["current-using"]) == ("1", "2", "2")
    id = await producer.put(b"late")
    assert await worker.answer() == b"RESERVED %d 4\r\nlate\r\n" % id
    assert not await waiting(producer)


async def test_a_job_belongs_to_the_connection_that_reserved_it(connect):
    one, other = await connect(), await connect()
    id = await one.put()
    await one.reserve()
    for command in (f"delete {id}", f"touch {id}", f"release {id} 0 0", f"bury {id} 0", f"reserve-job {id}"):
        assert await other(command) == b"NOT_FOUND\r\n"
    assert (await other(f"peek {id}")).startswith(b"FOUND")
    assert await one(f"touch {id}") == b"TOUCHED\r\n"
    assert await one(f"delete {id}") == b"DELETED\r\n"


async def test_the_jobs_of_a_connection_that_closes_are_ready_at_once(connect):
    one, other = await connect(), await connect()
    await one("use a")
    ids = [await one.put(), await one.put(), await other.put()]
    await one("watch a")
    for _ in ids:
        await one.reserve()
    await other("watch a")
    other.send(b"reserve-with-timeout 60\r\n")
    await one.close()
    watch = Stopwatch()
    got = [int((await other.answer()).split()[1])] + [(await other.reserve())[0] for _ in range(2)]
    assert sorted(got) == ids
    assert watch() < 30


async def test_a_reserve_of_a_client_that_goes_takes_nothing(connect):
    one, other = await connect(), await connect()
    one.send(b"reserve\r\n")
    await soon(lambda: waiting(other))
    await one.close()

    async def gone():
        return not await waiting(other)

    await soon(gone)
    id = await other.put()
    assert (await other.reserve())[0] == id
    assert (await other.stats(f"stats-job {id}"))["reserves"] == "1"


async def test_a_half_closed_client_gets_its_answers(connect):
    one, other = await connect(), await connect()
    id = await other.put(b"a")
    one.send(b"list-tube-used\r\nreserve\r\nreserve\r\n")
    job = b"USING default\r\nRESERVED %d 1\r\na\r\n" % id
    assert await one.reader.readexactly(len(job)) == job  # the reserve that waits from now on is the second
    await soon(lambda: waiting(other))
    one.writer.write_eof()
    assert await one.reader.read() == b"TIMED_OUT\r\n"
    assert (await other.reserve())[0] == id


async def test_commands_may_come_in_one_piece_or_in_many(bean):
    bean.send(b"use t\r\nput 0 0 9 2\r\nab\r\nwatch t\r\nreserve\r\nlist-tube-used\r\nquit\r\nstats\r\n")
    whole = await bean.reader.read()
    assert whole.startswith(b"USING t\r\nINSERTED ")
    assert whole.endswith(b"\r\nab\r\nUSING t\r\n")


async def test_a_command_may_come_byte_by_byte(bean):
    for byte in b"put 0 0 9 4\r\n\r\n\r\n\r\nlist-tube-used\r\n":
        bean.send(bytes([byte]))
        await bean.writer.drain()
        await asyncio.sleep(0)
    assert (await bean.answer()).startswith(b"INSERTED")
    assert await bean.answer() == b"USING default\r\n"


# --- time


async def test_the_time_to_run_ends_a_reservation(connect, db):
    one, other = await connect(), await connect()
    id = await one.put(ttr=60)
    assert (await one.reserve())[0] == id
    pass_time(db, "60 s")
    assert (await other.reserve())[0] == id
    stats = await other.stats(f"stats-job {id}")
    assert (stats["timeouts"], stats["reserves"]) == ("1", "2")
    for command in (f"delete {id}", f"release {id} 0 0", f"touch {id}"):
        assert await one(command) == b"NOT_FOUND\r\n"
    assert await other(f"delete {id}") == b"DELETED\r\n"
    assert (await other.stats())["job-timeouts"] == "1"


async def test_no_time_to_run_is_a_second(bean):
    id = await bean.put(ttr=0)
    assert (await bean.stats(f"stats-job {id}"))["ttr"] == "1"


@pytest.mark.slow
async def test_deadline_soon(connect, monkeypatch):
    """The margin of 59 seconds leaves time for the commands after the warning."""
    one, other = await connect(), await connect()
    id = await one.put(ttr=60)
    await one.reserve()
    watch = Stopwatch()
    assert connection.MARGIN == 1
    assert await one("reserve-with-timeout 0") == b"TIMED_OUT\r\n"
    assert await other("reserve-with-timeout 0") == b"TIMED_OUT\r\n"
    monkeypatch.setattr(connection, "MARGIN", 59.0)
    assert await one("reserve") == b"DEADLINE_SOON\r\n"
    assert 0.5 < watch() < 2 + 30
    assert await one("reserve-with-timeout 0") == b"DEADLINE_SOON\r\n"
    ready = await other.put()
    assert (await one.reserve())[0] == ready  # a ready job comes before the warning
    assert await one(f"touch {id}") == b"TOUCHED\r\n"
    monkeypatch.setattr(connection, "MARGIN", 1.0)
    assert await one("reserve-with-timeout 0") == b"TIMED_OUT\r\n"


async def test_delays(bean):
    watch = Stopwatch()
    id = await bean.put(delay=100)
    stats = await bean.stats(f"stats-job {id}")
    assert stats["state"] == "delayed"
    assert 0 <= int(stats["age"]) <= watch()
    assert 99 - watch() <= int(stats["time-left"]) < int(stats["delay"]) == 100
    assert await bean("reserve-with-timeout 0") == b"TIMED_OUT\r\n"
    assert (await bean("peek-delayed")).startswith(b"FOUND %d " % id)
    assert await bean(f"kick-job {id}") == b"KICKED\r\n"
    await bean.reserve()
    assert await bean(f"release {id} 4294967295 4294967295") == b"RELEASED\r\n"
    stats = await bean.stats(f"stats-job {id}")
    assert (stats["pri"], stats["state"], stats["releases"]) == ("4294967295", "delayed", "1")
    assert await bean(f"reserve-job {id}") == b"RESERVED %d 1\r\nx\r\n" % id


async def test_a_paused_tube_serves_later(bean):
    assert await bean("pause-tube none 60") == b"NOT_FOUND\r\n"
    await bean("use p")  # it exists by that, without a queue
    assert await bean("pause-tube p 60") == b"PAUSED\r\n"
    id = await bean.put()
    await bean("watch p")
    assert await bean("reserve-with-timeout 0") == b"TIMED_OUT\r\n"
    stats = await bean.stats("stats-tube p")
    assert (stats["pause"], stats["cmd-pause-tube"]) == ("60", "1")
    assert 50 < int(stats["pause-time-left"]) < 60
    assert await bean("pause-tube p 0") == b"PAUSED\r\n"
    assert (await bean.reserve())[0] == id


# --- buried jobs


async def test_kick_takes_buried_jobs_first(bean):
    delayed = await bean.put(delay=100)
    ids = [await bean.put(priority=n) for n in range(3)]
    for id in ids:
        await bean.reserve()
        assert await bean(f"bury {id} 9") == b"BURIED\r\n"
    assert (await bean("peek-buried")).startswith(b"FOUND %d " % ids[0])
    assert await bean("kick 0") == b"KICKED 0\r\n"
    assert await bean("kick 2") == b"KICKED 2\r\n"
    assert await bean("kick 4294967295") == b"KICKED 1\r\n"
    assert (await bean("peek-delayed")).startswith(b"FOUND %d " % delayed)
    assert await bean("kick 9") == b"KICKED 1\r\n"
    assert await bean(f"kick-job {delayed}") == b"NOT_FOUND\r\n"
    assert await bean("kick-job 999999999") == b"NOT_FOUND\r\n"
    assert (await bean.stats("stats-tube default"))["current-jobs-ready"] == "4"


# --- tubes


async def test_a_tube_is_there_while_it_has_jobs_or_a_connection_refers_to_it(connect):
    one, other = await connect(), await connect()
    assert await one.listed("list-tubes") == ["default"]
    await one("use a")
    await one("watch b")
    assert await other.listed("list-tubes") == ["default", "a", "b"]
    id = await one.put()
    await one("use default")
    await one("ignore b")
    assert await other.listed("list-tubes") == ["default", "a"]
    assert await one(f"delete {id}") == b"DELETED\r\n"
    assert await other.listed("list-tubes") == ["default"]
    assert await other("stats-tube a") == b"NOT_FOUND\r\n"
    assert (await other.stats())["current-tubes"] == "1"


async def test_the_watch_list(bean):
    assert await bean("ignore default") == b"NOT_IGNORED\r\n"
    for tube, count in (("a", 2), ("b", 3), ("a", 3)):
        assert await bean(f"watch {tube}") == b"WATCHING %d\r\n" % count
    assert await bean("ignore none") == b"WATCHING 3\r\n"
    assert await bean("ignore default") == b"WATCHING 2\r\n"
    assert await bean.listed("list-tubes-watched") == ["b", "a"]  # beanstalkd's order


async def test_queues_whose_names_are_no_tubes_are_left_out(bean, client):
    task = await client.queue("no tube\n").put(1)
    assert await bean.listed("list-tubes") == ["default"]
    assert (await bean(f"stats-job {task.id}")).splitlines()[3] == b'tube: "no tube\\n"'


async def test_stats(connect):
    one, other = await connect(), await connect()
    await one.put(priority=1023)
    await one.put(priority=1024)
    await one.put(delay=60)
    stats = await other.stats()
    jobs = ("urgent", "ready", "reserved", "delayed", "buried")
    assert [stats[f"current-jobs-{one}"] for one in jobs] == ["1", "2", "0", "1", "0"]
    assert (stats["cmd-put"], stats["cmd-stats"], stats["draining"]) == ("3", "1", "false")
    assert (stats["current-connections"], stats["current-producers"], stats["current-workers"]) == ("2", "1", "0")
    await other.reserve()
    stats = await other.stats("stats-tube default")
    assert [stats[f"current-jobs-{one}"] for one in jobs] == ["0", "1", "1", "1", "0"]
    assert stats["total-jobs"] == "3"


# --- refusals and bounds


async def test_what_is_no_command(bean):
    assert await bean("x" * 223) == b"BAD_FORMAT\r\n"
    assert await bean("x" * 222) == b"UNKNOWN_COMMAND\r\n"
    assert await bean("x" * 100_000) == b"BAD_FORMAT\r\n"
    assert await bean(b"\0\xff\xfe\n\r") == b"BAD_FORMAT\r\n"
    assert await bean("delete 18446744073709551615") == b"NOT_FOUND\r\n"
    assert await bean("delete 18446744073709551616") == b"BAD_FORMAT\r\n"
    bean.send(b"put 0 0 1 2\r\nabcd")
    assert await bean.answer() == b"EXPECTED_CRLF\r\n"
    assert await bean("put 0 0 1 65536\r\n" + "y" * 65536) == b"JOB_TOO_BIG\r\n"
    assert await bean("put 0 0 1 65535\r\n" + "y" * 65535) != b"JOB_TOO_BIG\r\n"


async def test_a_browser_is_sent_away(bean):
    bean.send(b"POST / HTTP/1.1\r\nHost: localhost\r\n\r\nput 0 0 1 1\r\nx\r\n")
    assert await bean.reader.read() == b""


async def test_a_put_that_the_queue_refuses(bean, client):
    await client.create_queue("full", capacity=1)
    await bean("use full")
    await bean.put()
    assert await bean("put 0 0 1 1\r\nx") == b"OUT_OF_MEMORY\r\n"
    await client.create_queue("small", max_size=5)
    await bean("use small")
    assert await bean("put 0 0 1 9\r\nxxxxxxxxx") == b"JOB_TOO_BIG\r\n"
    await client.queue("small").drain()
    assert await bean("put 0 0 1 1\r\nx") == b"DRAINING\r\n"


async def test_the_drain_mode_refuses_puts_alone(bean, server):
    id = await bean.put()
    server.drain()
    assert await bean("put 0 0 1 1\r\nx") == b"DRAINING\r\n"
    assert (await bean.reserve())[0] == id
    assert (await bean.stats())["draining"] == "true"


@pytest.mark.slow
async def test_a_slow_reader_holds_up_nobody(connect):
    slow, other = await connect(), await connect()
    id = await other.put(b"y" * 65535)
    for _ in range(500):
        slow.send(b"peek %d\r\n" % id)
    await asyncio.wait_for(other("list-tube-used"), 30)
    for _ in range(500):
        assert len(await slow.answer()) > 65535


async def test_a_connection_that_is_reset_gives_its_jobs_back(connect):
    one, other = await connect(), await connect()
    id = await one.put()
    await one.reserve()
    raw = one.writer.get_extra_info("socket")
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    one.writer.transport.abort()
    assert (await other.reserve())[0] == id


async def test_one_connection_too_many(client):
    server = Server(client, max_connections=1)
    await server.start(bound("127.0.0.1:0"))
    first, second = await Bean.connect(server.address[1]), await Bean.connect(server.address[1])
    assert await first("list-tube-used") == b"USING default\r\n"
    assert await second.reader.read() == b"OUT_OF_MEMORY\r\n"
    await first.close()
    await second.close()
    await server.close()


@pytest.mark.slow
async def test_a_lost_database(bean, client, connect, pg_server, dsn):
    waiter = await connect()
    waiter.send(b"reserve\r\n")
    await soon(lambda: waiting(bean))
    hurry(client, connect_timeout=0.5)
    with away(pg_server, dsn):
        assert await bean("put 0 0 1 1\r\nx") == b"INTERNAL_ERROR\r\n"
        assert await bean("list-tube-used") == b"USING default\r\n"

    async def inserted() -> bytes | None:
        """The database is there at once, the client's next attempt to reach it a little later."""
        answer = await bean("put 0 0 1 5\r\nlater")
        return answer if answer.startswith(b"INSERTED") else None

    id = int((await soon(inserted)).split()[1])
    assert await waiter.answer() == b"RESERVED %d 5\r\nlater\r\n" % id


async def test_a_fault_ends_its_connection_alone(connect, monkeypatch, caplog):
    one, other = await connect(), await connect()
    id = await one.put(b"text")

    def faulty(data):
        monkeypatch.undo()
        raise RuntimeError("a fault")

    monkeypatch.setattr(connection, "body_of", faulty)
    assert await one("reserve") == b""
    assert "a fault" in caplog.text
    assert await other.reserve() == (id, b"text")


def test_an_outage_writes_a_line_a_second_and_not_one_for_each_command(caplog, monkeypatch):
    now = 100.0
    monkeypatch.setattr(connection, "monotonic", lambda: now)
    log = connection.Log()
    for _ in range(3):
        log.failed(Command("peek"), ServerError("the server\nis away"))
    assert caplog.messages == ["beanstalkd's peek failed: the server is away"]
    now += connection.QUIET
    log.failed(Command("put"), ServerError("again"))
    assert caplog.messages[1:] == ["beanstalkd's put failed: again"]


async def test_queues_of_tubes_that_were_left_are_deleted_if_asked_for(client, monkeypatch):
    monkeypatch.setattr(leftovers, "EVERY", 0.01)
    await client.create_queue("made by hand", metadata={"of": "shop"})
    await client.create_queue("altered", ttl=60)
    server = Server(client, delete_tubes=True)
    await server.start(bound("127.0.0.1:0"))
    one, other = await Bean.connect(server.address[1]), await Bean.connect(server.address[1])
    for tube in ("kept", "watched", "altered", "reply-1"):
        await one(f"use {tube}")
        await one.put(b"a")
    await other("watch watched")
    for tube in ("watched", "altered", "reply-1"):
        await one(f"watch {tube}")
        id, _ = await one.reserve()
        await one(f"delete {id}")
    await one("ignore altered")
    await one.close()

    async def names():
        return [queue.name for queue in await client.queues()]

    async def gone(tube):
        return tube not in await names()

    await soon(lambda: gone("reply-1"))
    assert await names() == ["altered", "kept", "made by hand", "watched"]
    await other("ignore watched")
    await soon(lambda: gone("watched"))
    await other.close()
    await server.close()


async def test_a_queue_that_was_set_up_by_hand_is_no_leftover(client, dsn, db):
    jobs, tubes = Jobs(client), ["granted", "limited", "plain", "restricted"]
    for tube in tubes:
        await client.create_queue(tube)
    await client.limits.set("limited", concurrency=1)
    await client.privileges.restrict("restricted")
    with roles.made(dsn, db) as make:
        await client.privileges.grant("granted", make())
        for tube in tubes:
            await jobs.forget(tube)
    assert [queue.name for queue in await client.queues()] == ["granted", "limited", "restricted"]


async def test_the_number_of_watched_tubes_is_limited(bean):
    for number in range(2, connection.WATCHED + 1):
        assert await bean(f"watch {number}") == b"WATCHING %d\r\n" % number
    assert await bean("watch more") == b"OUT_OF_MEMORY\r\n"
    assert await bean("watch 7") == b"WATCHING %d\r\n" % connection.WATCHED


@pytest.mark.slow
async def test_a_connection_that_closes_while_the_database_is_away(bean, client, connect, pg_server, dsn):
    other = await connect()
    id = await bean.put(ttr=600)
    await bean.reserve()
    hurry(client, connect_timeout=0.5)
    with away(pg_server, dsn):
        await bean.close()
        assert await other("peek 1") == b"INTERNAL_ERROR\r\n"
    hurry(client, connect_timeout=PATIENCE)
    assert (await other.reserve())[0] == id


async def test_half_a_job_is_none(bean, connect):
    other = await connect()
    bean.send(b"put 0 0 60 5\r\nhal")
    await bean.close()
    assert await other("peek-ready") == b"NOT_FOUND\r\n"


@pytest.mark.slow
async def test_more_connections_than_the_pool_has_put_and_delete_at_the_same_time(connect):
    beans = [await connect() for _ in range(100)]

    async def work(bean):
        await bean.put()
        id, _ = await bean.reserve("reserve")
        assert await bean(f"delete {id}") == b"DELETED\r\n"
        assert (await bean("peek-ready")).startswith((b"FOUND", b"NOT_FOUND"))

    await asyncio.gather(*map(work, beans))
    assert (await beans[0].stats())["current-jobs-ready"] == "0"
