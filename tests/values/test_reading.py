"""Reading JSON: by msgspec and by the standard library, to the same values and the same errors."""

from __future__ import annotations

import json
import math
import struct
import sys
import threading
from collections import OrderedDict, namedtuple
from collections.abc import Callable
from datetime import datetime
from enum import Enum, IntEnum, StrEnum
from typing import Any
from uuid import UUID

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from statements import value

from pgqueue import BadData
from pgqueue._values import data, reading

pytestmark = pytest.mark.once

read_by_msgspec = reading.reader_by_msgspec()


def outcome(read: Callable[[str], Any], text: str) -> tuple[str, ...]:
    """The value with its types, the sign of its zeros and the order of its keys; or the error, and its context."""
    try:
        return ("value", repr(read(text)))
    except (ValueError, RecursionError) as error:
        return (type(error).__name__, str(error), repr(error.__context__))


def assert_same(text: str) -> None:
    assert outcome(read_by_msgspec, text) == outcome(reading.read_by_json, text)


# --- texts


def _number(whole: str, part: str, exponent: str) -> str:
    return whole + part + exponent


digits = st.text("0123456789", min_size=1, max_size=25) | st.text("019", min_size=300, max_size=450)
whole = st.integers().map(str) | st.integers(-(2**66), 2**66).map(str) | st.from_regex(r"\A-?(0|[1-9][0-9]{0,30})\Z")
numbers = st.builds(
    _number,
    whole,
    st.just("") | digits.map(lambda d: f".{d}"),
    st.just("") | st.integers(-400, 400).map(lambda e: f"e{e}") | st.integers(0, 330).map(lambda e: f"E+{e:02}"),
)
strings = st.text(max_size=20).map(json.dumps) | st.text(max_size=20).map(lambda s: json.dumps(s, ensure_ascii=False))
leaves = numbers | strings | st.sampled_from(["null", "true", "false", "NaN", "-Infinity", '"\\ud800"', "9" * 4301])


def _nested(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """Arrays and objects as jsonb writes them, with a space behind each comma and colon; keys may come twice."""
    items = st.lists(inner, max_size=5)
    pairs = st.lists(st.tuples(st.sampled_from(['"a"', '"b"', '"\\u00fc"', '""']) | strings, inner), max_size=5)
    return items.map(lambda items: f"[{', '.join(items)}]") | pairs.map(
        lambda pairs: "{" + ", ".join(f"{key}: {item}" for key, item in pairs) + "}"
    )


texts = st.recursive(leaves, _nested, max_leaves=15)


@pytest.mark.slow
@settings(max_examples=400)
@given(texts)
@example("1e309")
@example("-1e-400")
@example("-0")
@example("-0.0")
@example(str(2**64))
@example("0." + "0" * 400 + "1")
@example('{"a": 1, "b": 2, "a": 3}')
def test_a_json_text_has_one_value(text: str) -> None:
    assert_same(text)


@settings(max_examples=400)
@given(st.text('{}[]":, \t\n\\/udtrfalsenNI0123456789eE+-.\ufeff\x00\x1f\ud800é', max_size=12))
@example("")
@example(" [1] ")
@example("[1]x")
@example("[1,]")
@example("01")
@example("\ud800")
def test_a_text_that_may_be_json_or_not_has_one_value_or_error(text: str) -> None:
    assert_same(text)


@pytest.mark.slow
@settings(max_examples=200)
@given(texts, st.data())
def test_a_json_text_with_a_fault_has_one_error(text: str, draw: st.DataObject) -> None:
    at = draw.draw(st.integers(0, len(text)))
    assert_same(text[:at] + draw.draw(st.text('{}[]":,\\ 0e.-\x00', max_size=2)) + text[at + 1 :])


@pytest.mark.slow
@settings(max_examples=400)
@given(st.binary(min_size=8, max_size=8))
def test_a_float_of_any_bits_is_read_to_its_last_bit(bits: bytes) -> None:
    (number,) = struct.unpack("<d", bits)
    if math.isfinite(number):
        for text in (repr(number), f"{number:.17e}", f"{number:.400f}"):
            assert_same(text)


@pytest.mark.parametrize("depth", [1, 100, 500, 100_000])
@pytest.mark.parametrize(("begin", "end"), [("[", "]"), ('{"a": ', "}")])
def test_deep_nesting_is_read_or_refused_alike(depth: int, begin: str, end: str) -> None:
    text = begin * depth + "1" + end * depth
    for read in (read_by_msgspec, reading.read_by_json):
        if depth > 1000:
            with pytest.raises(ValueError, match="nested too deep"):
                read(text)
        else:
            assert json.dumps(read(text)) == text


# --- values, as they come back from a put


class Text(str):
    pass


class Number(IntEnum):
    ONE = 1


class Name(StrEnum):
    RED = "red"


class Plain(Enum):
    A = 1


Pair = namedtuple("Pair", "a b")

simple = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
odd = st.sampled_from(
    [
        Text("x"),
        Number.ONE,
        Name.RED,
        Plain.A,
        Pair(1, 2),
        OrderedDict(a=1),
        datetime(2026, 1, 1),
        UUID(int=1),
        b"x",
        {1},
    ]
)
values = st.recursive(
    simple | odd,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text() | st.integers() | odd.filter(lambda key: isinstance(key, str)), inner, max_size=4)
    ),
    max_leaves=10,
)


@pytest.mark.slow
@settings(max_examples=300)
@given(values)
def test_a_value_comes_back_alike(item: Any) -> None:
    try:
        text = data.encode(item)
    except BadData:
        return
    assert_same(text)


# --- what jsonb writes


@pytest.mark.parametrize(
    "text",
    [
        "[1e400, 1]",
        "[1e-400]",
        "1e22",
        "123456789012345678901234567890.125",
        "-0",
        "-0.0",
        "5e-324",
        '{"b": 1, "a": {"ü": "\\u00e9\\n\\u001f\\"\\\\/😀"}, "b": 2}',
        '[[], {}, [[]], "", null, true]',
        str(-(2**63) - 1),
        str(2**64),
        "9" * 5000,
    ],
)
def test_what_jsonb_writes_is_read_alike(db, text: str) -> None:
    assert_same(value(db, "SELECT %s::jsonb::text", text))


# --- which one reads


def test_msgspec_reads_by_itself_where_it_is_installed() -> None:
    assert data.decode.__name__ == "read_by_msgspec"


def test_without_msgspec_the_standard_library_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "msgspec.json", None)
    assert reading.reader_by_msgspec() is None


def test_an_old_msgspec_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def without_hook() -> None:
        pass

    monkeypatch.setattr("msgspec.json.Decoder", without_hook)
    assert reading.reader_by_msgspec() is None


def test_many_threads_read_at_once() -> None:
    wrong: list[Any] = []
    items = [{"n": n + 0.5, "text": f"t{n}" * 50, "big": 2**70 + n, "list": [n / 3] * 20} for n in range(50)]
    texts = [json.dumps(item) for item in items]

    def work() -> None:
        for _ in range(20):
            wrong.extend(item for item, text in zip(items, texts, strict=True) if data.decode(text) != item)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
