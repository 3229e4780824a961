"""Task data as JSON text: what goes through, and where the fault is when it does not. No database."""

from __future__ import annotations

import json
from enum import IntEnum, StrEnum
from typing import Any

import pytest

from pgqueue import BadData
from pgqueue._values import data, reading

READERS = [reading.read_by_json, reading.reader_by_msgspec()]


@pytest.fixture(autouse=True, params=READERS, ids=["json", "msgspec"])
def _reader(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test with and without the extra `fast`."""
    monkeypatch.setattr(data, "decode", request.param)


@pytest.mark.parametrize(
    "value",
    [None, True, 0, -1.5, "", "ü\u2028😀", [], {}, [[1, [2]], {"a": {"b": None}}], "\\u0000", 2**80, 1e300, '"', "\n"],
)
def test_what_json_holds_goes_through(value: Any) -> None:
    assert data.decode(data.encode(value)) == value


def test_tuples_become_lists() -> None:
    assert data.decode(data.encode({"1": (2, 3)})) == {"1": [2, 3]}


class Number(IntEnum):
    ONE = 1


@pytest.mark.parametrize(
    "key",
    [1, 0, -7, 10**30, 1.5, 1e100, -1e-7, float("nan"), float("inf"), True, False, None, Number.ONE, (1, 2), b"k"],
)
@pytest.mark.parametrize(
    ("around", "path"),
    [
        (lambda it: it, "$"),
        (lambda it: {"lines": [1, {"1": "a"}, "x", it]}, "$.lines[3]"),
        (lambda it: ({"a": (0, it)},), "$[0].a[1]"),
    ],
    ids=["bare", "in a list", "in a tuple"],
)
def test_a_key_that_is_not_a_string_is_refused(key: Any, around: Any, path: str) -> None:
    with pytest.raises(BadData) as raised:
        data.encode(around({"a": "1", key: 2}))
    assert str(raised.value) == f"{path}: a key must be a string, not {key!r}"
    with pytest.raises(BadData) as raised:
        data.encode_many([{"1": 1}, around({key: 2})])
    assert raised.value.path == f"[1]{path}"


class Text(str):
    pass


class Color(StrEnum):
    RED = "1"


@pytest.mark.parametrize(
    "key", ["1", "line1", "name", "-1.5e+10", "true", "false", "null", "", '"1":', "ü", Text("7"), Color.RED]
)
def test_a_string_that_looks_like_another_key_is_none(key: str) -> None:
    assert data.decode(data.encode([{key: {key: 1}}])) == [{str(key): {str(key): 1}}]
    assert data.decode(data.encode([{"a": f'"{key}":'}])) == [{"a": f'"{key}":'}]


CIRCLE: list[Any] = [1]
CIRCLE.append({"again": CIRCLE})
TWICE = ["shared"]


@pytest.mark.parametrize(
    ("value", "path"),
    [
        (float("nan"), "$"),
        ([0, [float("inf")]], "$[1][0]"),
        ({"a": [{"b": -float("inf")}]}, "$.a[0].b"),
        ({1}, "$"),
        ({"when": {"set": {1}}}, "$.when.set"),
        ((1, object()), "$[1]"),
        ({("a", "b"): 1}, "$"),
        ({"x": {b"k": 1}}, "$.x"),
        ({"$bytes": "AA=="}, "$"),
        ({"a\0": 1}, "$.a\0"),
        (["ok", {"$text": "no base64"}], "$[1]"),
        ({"\ud800": 1}, "$.\ud800"),
        (CIRCLE, "$[1].again"),
    ],
    ids=range(13),
)
def test_the_place_of_a_fault(value: Any, path: str) -> None:
    with pytest.raises(BadData) as raised:
        data.encode(value)
    assert raised.value.path == path
    assert str(raised.value) == f"{path}: {raised.value.reason}"


def test_the_first_of_two_faults_is_named() -> None:
    with pytest.raises(BadData) as raised:
        data.encode({"a": 1, "b": [{"first"}], "c": {"second"}})
    assert raised.value.path == "$.b[0]"


def test_what_is_shared_is_not_circular() -> None:
    assert data.encode([TWICE, TWICE, {"a": TWICE}]) == '[["shared"],["shared"],{"a":["shared"]}]'


def test_a_fault_beside_what_is_shared_is_named() -> None:
    with pytest.raises(BadData) as raised:
        data.encode([TWICE, TWICE, {1}])
    assert raised.value.path == "$[2]"


def test_data_that_is_too_deep() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(BadData):
        data.encode(deep)


def test_a_number_that_python_does_not_write() -> None:
    with pytest.raises(BadData, match="digits"):
        data.encode({"n": 10**5000})


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("1.5", 1.5),
        ("-0.0", -0.0),
        ("0.000", 0.0),
        ("0e5", 0.0),
        ("1e308", 1e308),
        ("5e-324", 5e-324),
        ("0.33333333333333333333", 1 / 3),
        ("1" + "0" * 4000, 10**4000),
    ],
)
def test_numbers_that_can_be_read(text: str, number: float) -> None:
    assert repr(data.decode(text)) == repr(number)


@pytest.mark.parametrize(
    "text", ["1e309", "-1e309", "1e-400", "-0.0" + "0" * 400 + "1", "9" * 400 + ".5", "9" * 5000, "9" * 5000 + ".5"]
)
def test_numbers_that_would_become_others(text: str) -> None:
    for whole in (text, f'{{"a": [{text}]}}'):
        with pytest.raises(ValueError, match=r"out of the range of a float|digits"):
            data.decode(whole)


@pytest.mark.parametrize(("text", "size"), [("x" * 8, 10), ("ü" * 4, 10), ("😀", 6), ("\n", 4)])
def test_the_size_is_in_bytes_of_json(text: str, size: int) -> None:
    assert len(data.encode(text, size).encode()) == size
    with pytest.raises(BadData, match=f"{size} bytes of JSON, the limit is {size - 1}") as raised:
        data.encode(text, size - 1)
    assert raised.value.path == "$"


# --- many


def test_many_are_one_array() -> None:
    assert data.encode_many([1, "a", None, {}]) == '[1,"a",null,{}]'
    assert data.encode_many([]) == "[]"


def test_the_limit_is_for_each_item_and_not_for_all() -> None:
    items = ["x" * 8] * 20
    assert json.loads(data.encode_many(items, 10)) == items
    with pytest.raises(BadData) as raised:
        data.encode_many([*items, "x" * 9], 10)
    assert raised.value.path == "[20]$"


@pytest.mark.parametrize("bad", [float("nan"), {"\0": 1}, {"$bytes": ""}, object()])
def test_the_index_of_a_bad_item(bad: Any) -> None:
    with pytest.raises(BadData) as raised:
        data.encode_many([0, 1, {"deep": [bad]}])
    assert raised.value.path.removesuffix(".\0") == "[2]$.deep[0]"


def test_an_item_that_looks_like_a_fault_is_none() -> None:
    assert json.loads(data.encode_many(["\\u0000", "\\\\u0000"])) == ["\\u0000", "\\\\u0000"]


def test_chunks_of_a_generator_and_an_index_that_counts_on() -> None:
    chunks = list(data.encode_chunks((n for n in range(25)), 10))
    assert [len(json.loads(chunk)) for chunk in chunks] == [10, 10, 5]
    assert [n for chunk in chunks for n in json.loads(chunk)] == list(range(25))
    with pytest.raises(BadData) as raised:
        list(data.encode_chunks(({1} if n == 17 else n for n in range(25)), 10))
    assert raised.value.path == "[17]$"


def test_chunks_are_made_as_they_are_asked_for() -> None:
    read = []
    chunks = data.encode_chunks((read.append(n) or n for n in range(100)), 10)
    next(chunks)
    assert len(read) == 10


def test_chunks_of_nothing() -> None:
    assert list(data.encode_chunks([], 10)) == []
