"""Bytes, and texts that jsonb cannot hold, as data: what is stored, and what comes back. No database."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pgqueue import BadData
from pgqueue._values import data, marked, printable, reading, record

READERS = [reading.read_by_json, reading.reader_by_msgspec()]


@pytest.fixture(autouse=True, params=READERS, ids=["json", "msgspec"])
def _reader(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test with and without the extra `fast`."""
    monkeypatch.setattr(data, "decode", request.param)


@pytest.mark.parametrize(
    ("value", "stored"),
    [
        (b"", {"$bytes": ""}),
        (b"\x00\xff", {"$bytes": "AP8="}),
        ("a\0b", {"$text": "YQBi"}),
        ("\ud800", {"$text": "7aCA"}),
        ({"n": 1, "body": b"x", "all": [b"y", "\0"]}, None),
        ("\ud83d\ude00", None),
        (["\\u0000", '{"$bytes":"AA=="}', {"$bytes": "a", "b": 1}, {"$other": 1}], None),
    ],
)
def test_what_is_put_comes_back(value: Any, stored: Any) -> None:
    text = data.encode(value)
    assert stored in (None, json.loads(text))
    assert "\\u0000" not in text.replace("\\\\u0000", "")
    assert data.decode(text) == value
    as_jsonb = json.dumps(json.loads(text), ensure_ascii=False)  # with blanks after colons
    assert data.decode(as_jsonb) == value


@pytest.mark.parametrize("value", [bytearray(b"a"), memoryview(b"a")])
def test_other_bytes_become_bytes(value: Any) -> None:
    assert data.decode(data.encode([value])) == [b"a"]


def test_many_are_one_array() -> None:
    items = [b"a", 1, "\0", {"b": b"c"}]
    assert data.decode(data.encode_many(items)) == items


@pytest.mark.parametrize("value", [{"$bytes": "AA=="}, {"$text": "AA=="}, {"$bytes": 7}])
@pytest.mark.parametrize("around", [lambda it: it, lambda it: {"a": [b"", it]}])
def test_data_that_would_come_back_as_another_is_refused(value: Any, around: Any) -> None:
    with pytest.raises(
        BadData, match=r"an object with the one key \$(bytes|text) stands for bytes or a text: put that"
    ):
        data.encode(around(value))


@pytest.mark.parametrize("value", [{"\0": 1}, {"a\ud800": b"x"}, [{"a": {"\0": "\0"}}]])
def test_keys_have_no_form(value: Any) -> None:
    with pytest.raises(BadData, match="a key"):
        data.encode(value)


@pytest.mark.parametrize("form", [{"$bytes": "no base64"}, {"$bytes": 7}, {"$text": "/w=="}, {"$bytes": ["AA=="]}])
def test_an_object_from_sql_that_is_no_form_is_itself(form: Any) -> None:
    assert data.decode(json.dumps(form)) == form


def test_lines_of_base64_as_postgresql_writes_them() -> None:
    content = bytes(range(256))
    lines = base64.encodebytes(content).decode()
    assert data.decode(json.dumps({"$bytes": lines})) == content


def test_the_limit_counts_the_stored_form() -> None:
    assert len(data.encode(b"x" * 30, 53)) == 53
    with pytest.raises(BadData, match="53 bytes of JSON, the limit is 52"):
        data.encode(b"x" * 30, 52)


leaves = st.none() | st.integers() | st.binary() | st.text(st.characters()) | st.just("\0") | st.just("\ud800")
keys = st.sampled_from(["a", "$bytes", "$text", "job"])
values = st.recursive(leaves, lambda inner: st.lists(inner) | st.dictionaries(keys, inner), max_leaves=10)


@pytest.mark.slow
@settings(max_examples=300)
@given(values)
def test_data_is_refused_or_comes_back(value: Any) -> None:
    try:
        text = data.encode(value)
    except BadData:
        assert marked.is_in(value)
        return
    assert data.decode(text) == value


@pytest.mark.parametrize("content", [b"", b"text", "Grüße 😀".encode(), b"a\0b", b"\xff", b"\xed\xa0\x80"])
def test_bytes_are_text_where_they_can_be(content: bytes) -> None:
    text = marked.text_of(content)
    assert isinstance(text, str) == (content in (b"", b"text", "Grüße 😀".encode()))
    assert marked.bytes_of(text) == content


def test_what_people_and_serializers_see() -> None:
    assert printable.readable(b"\x80K\n") == r"b'\x80K\n'"
    assert printable.readable({"body": b"K"}) == '{"body": "b\'K\'"}'
    assert record.plain({"body": [b"K"]}) == {"body": [{"$bytes": "Sw=="}]}
