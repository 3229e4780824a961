"""msgspec reads the arguments of a job as pydantic does: it takes the same texts, as the same values."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import pgqueue
from pgqueue.jobs import quick
from pgqueue.jobs.signature import Signature
from pgqueue.jobs.typed import Typed

Job = Callable[..., None]


def whole(a: int) -> None: ...
def number(a: float) -> None: ...
def text(a: str) -> None: ...
def flag(a: bool) -> None: ...
def maybe(a: int | None) -> None: ...
def several(a: list[int], b: str | None, c: float) -> None: ...
def mapped(a: dict[str, list[float | None]]) -> None: ...
def nothing() -> None: ...


JOBS = (whole, number, text, flag, maybe, several, mapped, nothing)
NUMBERS = st.from_regex(r"-?(0|[1-9][0-9]{0,30})(\.[0-9]{1,30})?([eE][+-]?[0-9]{1,3})?", fullmatch=True)
STRINGS = st.text().map(json.dumps) | st.text().map(lambda one: json.dumps(one, ensure_ascii=False))
CONSTANTS = st.sampled_from(
    ["true", "false", "null", "[]", "{}", '"1"', "1.0", "NaN", "Infinity", '"\\ud800"', "1e400"]
)
VALUES = st.recursive(
    NUMBERS | STRINGS | CONSTANTS,
    lambda inner: (
        st.lists(inner, max_size=3).map(lambda of: f"[{', '.join(of)}]")
        | st.lists(st.tuples(STRINGS, inner), max_size=3).map(lambda of: f"{{{', '.join(': '.join(o) for o in of)}}}")
    ),
    max_leaves=5,
)
ARGS = st.lists(
    st.tuples(st.sampled_from(["a", "a", "a", "b", "c", "d"]), VALUES), max_size=4, unique_by=lambda o: o[0]
)


def codec(function: Job) -> Typed:
    return Typed(Signature(function, "j"), function, keeps_result=False)


def outcome(load: Callable[[str], dict[str, Any]], data: str) -> object:
    """The values and their types, or the error."""
    try:
        return repr(sorted(load(data).items()))
    except (ValueError, pgqueue.BadArguments) as error:
        return type(error), str(error)


@pytest.mark.slow
@pytest.mark.parametrize("function", JOBS)
@given(ARGS)
@example([("a", "9" * 5000)])
@example([("a", "1e-400")])
@example([("a", "-0")])
@example([("a", "1.7976931348623159e308")])
def test_both_read_the_same(function: Job, args: list[tuple[str, str]]) -> None:
    given = ", ".join(f'"{name}": {value}' for name, value in args)
    data = f'{{"job": "j", "args": {{{given}}}, "headers": {{"x": "1"}}}}'
    both = codec(function)
    assert outcome(both.load, data) == outcome(both._load, data)


@pytest.mark.parametrize("function", JOBS)
def test_msgspec_reads_what_fits(function: Job) -> None:
    """Without a look at what pydantic would say."""
    fits: dict[Job, Any] = {
        whole: {"a": 1},
        number: {"a": 1.5},
        text: {"a": "é"},
        flag: {"a": True},
        maybe: {"a": None},
        several: {"a": [1], "b": None, "c": 1.5},
        mapped: {"a": {"x": [None]}},
        nothing: {},
    }

    def otherwise(data: str) -> dict[str, Any]:
        raise AssertionError("pydantic was asked")

    load = quick.reader(Signature(function, "j"), otherwise)
    assert load is not None
    found = load(json.dumps({"job": "j", "args": fits[function]}))
    assert found == fits[function]
    function(**found)


@pytest.mark.parametrize(
    "annotation",
    [Any, bytes, object, int | str, dict[int, str], list, set[int], tuple[int, ...], list[Any], pgqueue.Task],
)
def test_other_types_are_left_to_pydantic(annotation: Any) -> None:
    def job(a: int, b: Any) -> None: ...

    job.__annotations__["b"] = annotation
    assert quick.reader(Signature(job, "j"), lambda text: {}) is None


def test_defaults_are_left_to_pydantic() -> None:
    def job(a: int, b: str = "x") -> None: ...

    assert quick.reader(Signature(job, "j"), lambda text: {}) is None
