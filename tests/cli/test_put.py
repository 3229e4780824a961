"""`pgqueue put`: of arguments and of lines, what it prints, and that what is wrong leaves nothing behind."""

from __future__ import annotations

import io
import json
import shlex
import sys
from types import SimpleNamespace
from unittest.mock import patch

import pytest
from commands import failed, invoke
from statements import value

import pgqueue
from pgqueue._values import data

pytestmark = pytest.mark.once


@pytest.fixture
def there(blocking):
    """The data of the tasks that are ready, by their place."""
    queue = blocking().queue("q")

    def look():
        return [task.data for task in queue.take_many(10_000, 0)]

    return look


# --- arguments


def test_each_data_is_a_task_and_the_ids_are_printed(command, there):
    assert command.lines("put", "q", '{"to": "ada"}') == ["1"]
    assert command.lines("put", "q", "2", '"three"', "null") == ["2", "3", "4"]
    assert there() == [{"to": "ada"}, 2, "three", None]


def test_text_is_put_as_it_stands(command, there):
    assert command.lines("put", "q", "--text", "{not json", "5 \N{DEGREE SIGN}") == ["1", "2"]
    assert there() == ["{not json", "5 \N{DEGREE SIGN}"]


def test_bytes_have_their_form(command, there):
    command.lines("put", "q", '{ "$bytes": "AP8=" }', '"a\\u0000b"')
    assert command.lines("pop", "q", "--timeout", "0") == ['{"$bytes": "AP8="}']
    assert there() == ["a\0b"]


def test_lists_for_people_show_bytes_as_python_writes_them(command, blocking):
    task = blocking().queue("q").put({"job": "shop.add", "body": b"\x80L"})
    assert command.lines("list", "q")[1].endswith("""{"job": "shop.add", "body": "b'\\\\x80L'"}""")
    assert """"body": "b'\\\\x80L'""" in command.lines("peek", str(task.id))[-1]
    assert command.json("peek", str(task.id))[0]["data"]["body"] == {"$bytes": "gEw="}


def test_json_output(command):
    assert command.json("put", "q", "1") == [{"id": 1, "queue": "q", "state": "ready", "existed": False}]
    assert command.json("put", "q", "1", "--delay", "60")[0]["state"] == "delayed"
    assert command.json("put", "q", "1", "2") == [{"id": 3, "queue": "q"}, {"id": 4, "queue": "q"}]


def test_the_options_are_those_of_put(command, db):
    options = shlex.split("--priority -3 --delay 60 --ttr 5 --ttl 7.5 --lane ada --key k")
    command.lines("put", "q", "1", *options)
    command.lines("put", "q", "2", "3", *options[:-2])  # without a key
    rows = db.execute(
        "SELECT priority, ttr, expires_at - run_at, lane, key, run_at > now() FROM pgqueue.tasks ORDER BY id"
    ).fetchall()
    assert [(row[0], row[1].total_seconds(), row[2].total_seconds(), *row[3:]) for row in rows] == [
        (-3, 5.0, 7.5, "ada", "k", True),
        (-3, 5.0, 7.5, "ada", None, True),
        (-3, 5.0, 7.5, "ada", None, True),
    ]


def test_a_key(command):
    put = ("put", "q", "1", "--key", "k")
    assert command.lines(*put) == command.lines(*put) == ["1"]
    assert command.json(*put)[0]["existed"]
    assert command.fails(1, *put, "--if-exists", "error")
    command.lines("put", "q", "2", "--key", "k", "--if-exists", "replace")
    assert command.json("peek", "1")[0]["data"] == 2


def test_no_room(command):
    command.lines("create-queue", "q", "capacity=1")
    command.lines("put", "q", "1")
    assert "'q' is full" in command.fails(3, "put", "q", "2")
    assert "no room for 2" in command.fails(3, "put", "q", "2", "3")
    assert command.finds_nothing("put", "q", "2", "--timeout", "0.05")


# --- lines


def test_lines_on_standard_input(command, there):
    lines = '{"n": 1}\n\n  [2]\r\n"drei \N{SNOWMAN}"'  # the last without an end
    assert command.lines("put", "q", "-", input=lines) == ["1", "2", "3"]
    assert command.json("put", "q", input=b"4\n") == [{"id": 4, "queue": "q"}]
    assert command.lines("put", "q", "--text", input="five \n") == ["5"]
    assert command.lines("put", "q", "-", input="") == []
    assert there() == [{"n": 1}, [2], "drei \N{SNOWMAN}", 4, "five "]


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (b'1\n\n{"a": }\n4\n', "line 3 is not JSON: expecting value at character 7"),
        (b"1\nNaN\n", "line 2 is not JSON: there is no NaN"),
        (b"1\n[1, -Infinity]\n", "line 2 is not JSON: there is no -Infinity"),
        (b"1\n" + b"[" * 100_000, "line 2 is not JSON: nested too deep"),
        (b"1\n" + b"9" * 5000, "line 2 is Exceeds the limit"),
        (b'1\n"\xff"\n', "line 2 is not UTF-8: byte 2"),
        (b'1\n{"\\u0000": 1}\n', "line 2: $.\\x00: a key of PostgreSQL's jsonb cannot hold the character \\u0000"),
        (b'1\n{"\\ud800": 1}\n', "line 2: $.\\ud800: a lone surrogate is not a character"),
        (b"\n\n1\n\n" * 1200 + b'{"a": ["b", 1e999]}', "line 4801: $.a[1]: JSON has no inf"),
        (b"1\n" * 2500 + b"?", "line 2501 is not JSON: expecting value at character 1"),
    ],
    ids=[
        "syntax",
        "nan",
        "infinity",
        "deep",
        "digits",
        "utf-8",
        "nul",
        "surrogate",
        "too large a number",
        "after two statements",
    ],
)
def test_a_wrong_line_is_named_and_nothing_is_put(command, there, lines, said):
    assert command.fails(2, "put", "q", "-", input=lines).startswith(said)
    assert there() == []


def test_in_batches_what_came_before_stays(command, there):
    said = command("put", "q", "--batch", "2", input="1\n2\n3\n4\n5\nx\n")
    assert (said.returncode, said.stdout.split()) == (2, ["1", "2", "3", "4"])
    assert said.stderr.startswith("Error: line 6 is not JSON")
    assert said.stderr.endswith("; 4 tasks of the lines before it were put\n")
    said = command("put", "q", "--batch", "2", input='5\n\n6\n\n7\n{"\\u0000": 1}\n')
    assert said.stderr.startswith("Error: line 6: $.\\x00: a key of PostgreSQL's jsonb cannot hold")
    assert said.stderr.endswith("; 2 tasks of the lines before it were put\n")
    assert there() == [1, 2, 3, 4, 5, 6]


def test_a_batch_of_one_is_committed_as_it_comes(dsn, db):
    seen = []

    def lines():
        for n in range(3):
            seen.append(db.execute("SELECT count(*) FROM pgqueue.tasks").fetchone()[0])
            yield b"%d\n" % n

    stdin = SimpleNamespace(buffer=lines(), isatty=lambda: False)
    with patch.object(sys, "stdin", stdin), pytest.raises(SystemExit) as ended:
        pgqueue.cli.main(["--dsn", dsn, "put", "q", "--batch", "1"])
    assert ended.value.code == 0
    assert seen == [0, 1, 2]


def test_many_lines_are_not_all_in_memory(dsn, monkeypatch):
    """What a statement sends is let go as soon as it is answered, and that is not left to the end."""
    from pgqueue._engine import connections

    sent = []
    count = 0

    class Text(str):
        def __del__(self):
            nonlocal count
            count -= 1

    encode = data.encode_many

    def counted(items, max_size, first=0):
        nonlocal count
        count += 1
        sent.append(count)
        return Text(encode(items, max_size, first))

    monkeypatch.setattr(data, "encode_many", counted)
    with pgqueue.Client(dsn) as client:
        assert len(client.queue("q").put_many(range(40_000))) == 40_000
    assert len(sent) == 40
    assert max(sent) <= connections.AHEAD + 3


# --- what is wrong


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["{"], "Invalid value for 'DATA': it is not JSON: expecting property name"),
        (["hello"], "it is not JSON: expecting value at character 1; a plain string needs --text"),
        (["NaN"], "it is not JSON: there is no NaN"),
        (["1", "--delay", "-1"], "Invalid value for '--delay': it must be 0 to 1e+09 seconds, not -1.0"),
        (["1", "--delay", "nan"], "it must be 0 to 1e+09 seconds, not nan"),
        (["1", "--delay", "soon"], "'soon' is not a number"),
        (["1", "--ttl", "0"], "it must be over 0 to 1e+09 seconds"),
        (["1", "--priority", "1.5"], "'1.5' is not a valid integer"),
        (["1", "--priority", "9999999999"], "is not in the range"),
        (["1", "--lane", ""], "a lane has 1 to 255 bytes"),
        (["1", "--if-exists", "error"], "--if-exists goes with --key"),
        (["1", "2", "--key", "k"], "--key, --if-exists and --timeout go with one DATA"),
        (["-", "--timeout", "1"], "--key, --if-exists and --timeout go with one DATA"),
        (["1", "--batch", "5"], "--batch is for lines on standard input"),
        (["1", "--colour", "red"], "No such option"),
    ],
    ids=" ".join,
)
def test_a_wrong_command_line_asks_nothing_of_a_server(arguments, said):
    assert said in failed(invoke("put", "q", *arguments, PGQUEUE_DSN="postgresql://127.0.0.1:1/none"), 2)


@pytest.mark.parametrize("name", ["", "x" * 201, "a\udcffb"])
def test_a_name_that_no_queue_has(name):
    assert "a queue's name" in failed(invoke("put", name, "1"), 2)


def test_data_that_cannot_be_stored(command):
    assert command.fails(2, "put", "q", '{"\\u0000": 1}').startswith("$.\\x00: a key of PostgreSQL's jsonb cannot hold")
    assert "it is not UTF-8: byte 2" in command.fails(2, "put", "q", "--text", "a\udcff")
    command.lines("create-queue", "q", "max_size=5")
    assert command.fails(1, "put", "q", json.dumps("x" * 9))


@pytest.mark.parametrize("stdin", [None, "a terminal"])
def test_nothing_to_read(dsn, stdin):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    with patch.object(sys, "stdin", stdin and Terminal()), pytest.raises(SystemExit) as ended:
        pgqueue.cli.main(["--dsn", dsn, "put", "q"])
    assert ended.value.code == 2


def test_put_at_a_moment(command, db):
    assert command.json("put", "q", "1", "--at", "2050-01-31T08:00:00Z")[0]["state"] == "delayed"
    assert value(db, "SELECT run_at::date::text FROM pgqueue.tasks") == "2050-01-31"
    assert command.json("put", "q", "1", "--at", "2020-01-31T08:00:00+01:00")[0]["state"] == "ready"
    for wrong, said in [("noon", "is not a time"), ("2999-01-31T08:00:00", "must have a time zone")]:
        assert said in command.fails(2, "put", "q", "1", "--at", wrong)
    assert "not both" in command.fails(2, "put", "q", "1", "--at", "2999-01-31T08:00:00Z", "--delay", "1")
