"""Arguments of jobs: what a signature accepts, how values come back, and which fault is named. Without a database."""

from __future__ import annotations

import dataclasses
import enum
import json
import pickle
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Literal, TypeAlias
from uuid import UUID

import pydantic
import pytest

import pgqueue
from pgqueue import BadArguments, BadData, Client, Job, Task
from pgqueue.jobs import codec
from pgqueue.jobs.plain import Plain

if TYPE_CHECKING:
    from collections import OrderedDict

pytestmark = pytest.mark.once

AnyJob: TypeAlias = Job[..., Any]


@pytest.fixture
def client() -> Client:
    return Client("postgresql://127.0.0.1:1/nowhere")


@pytest.fixture
def without_pydantic(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec, "_kind", lambda: Plain)


def sent(job: AnyJob, *args: Any, **kwargs: Any) -> str:
    """The data of a task as it comes back: jsonb writes the shorter key first."""
    return json.dumps(job.prepare(*args, **kwargs).data)


def received(job: AnyJob, *args: Any, **kwargs: Any) -> dict[str, Any]:
    return job.codec.load(sent(job, *args, **kwargs))


class Colour(enum.Enum):
    RED = "r"


class Order(pydantic.BaseModel):
    price: Decimal
    lines: tuple[str, ...] = ()
    from_: str | None = pydantic.Field(default=None, alias="from")


@dataclasses.dataclass
class Parcel:
    weight: float
    label: bytes


VALUES: list[tuple[Any, Any, Any]] = [
    (str, "ada", "ada"),
    (int, 2**70, 2**70),
    (float, 3, 3.0),
    (bool, True, True),
    (type(None), None, None),
    (Any, {"a": [1, None]}, {"a": [1, None]}),
    (datetime, datetime(2026, 3, 29, 2, 30, tzinfo=UTC), "2026-03-29T02:30:00Z"),
    (date, date(2026, 3, 29), "2026-03-29"),
    (timedelta, timedelta(minutes=90), "PT1H30M"),
    (UUID, UUID(int=7), "00000000-0000-0000-0000-000000000007"),
    (Decimal, Decimal("1.50"), "1.50"),
    (bytes, b"\xff\xfb", "__s="),
    (Colour, Colour.RED, "r"),
    (Literal["a", "b"], "b", "b"),
    (Order, Order(price=Decimal("2.5"), lines=("x",), **{"from": "y"}), {"price": "2.5", "lines": ["x"], "from": "y"}),
    (Parcel, Parcel(1.5, b"\xff"), {"weight": 1.5, "label": "_w=="}),
    (list[bytes], [b"\xff"], ["_w=="]),
    (dict[UUID, int], {UUID(int=1): 2}, {"00000000-0000-0000-0000-000000000001": 2}),
    (set[int], {3}, [3]),
    (datetime | None, None, None),
]


@pytest.mark.parametrize(("annotation", "value", "written"), VALUES, ids=lambda one: str(one)[:30])
def test_a_value_comes_back_as_it_was_put(client: Client, annotation: Any, value: Any, written: Any) -> None:
    def take(it):
        pass

    take.__annotations__ = {"it": annotation}
    job = client.job(name="take")(take)
    assert json.loads(sent(job, value)) == {"job": "take", "sig": job.version, "args": {"it": written}}
    assert received(job, value) == {"it": value}
    assert type(received(job, it=value)["it"]) is type(value) or annotation is float


def test_defaults_are_not_stored(client: Client) -> None:
    @client.job()
    def send(to: str, order: Order | None = None, *, at: datetime | None = None) -> None: ...

    assert json.loads(sent(send, "ada")) == {"job": send.name, "sig": send.version, "args": {"to": "ada"}}
    assert received(send, to="ada", at=datetime(2026, 1, 1)) == {"to": "ada", "at": datetime(2026, 1, 1)}


FAULTS: list[tuple[tuple[Any, ...], dict[str, Any], str, str]] = [
    ((), {}, "$.args", "lacks 'to'"),
    (("ada",), {"ordr": 1}, "$.args", r"has unknown 'ordr' \(its parameters: to, order=, n="),
    ((), {"ordr": 1}, "$.args", "lacks 'to' and has unknown 'ordr'"),
    (("ada", None, 1, 2), {}, "$.args", "takes 3 positional arguments, not 4"),
    (("ada",), {"to": "bob"}, "$.args.to", "is given twice"),
    ((1,), {}, "$.args.to", "valid string, not 1"),
    (("ada",), {"n": "1"}, "$.args.n", "valid integer, not '1'"),
    (("ada",), {"n": True}, "$.args.n", "valid integer, not True"),
    (("ada", 5), {"n": "1"}, "$.args.order", r"; args.n: .*valid integer"),
    (("ada",), {"any_": object()}, "$.args.any_", "valid JSON value"),
    (("ada",), {"amount": float("nan")}, "$.args.amount", "finite number"),
]


@pytest.mark.parametrize(("args", "kwargs", "path", "said"), FAULTS)
def test_a_put_names_the_argument(
    client: Client, args: tuple[Any, ...], kwargs: dict[str, Any], path: str, said: str
) -> None:
    @client.job(name="shop.send")
    def send(to: str, order: Order | None = None, n: int = 1, *, any_: Any = None, amount: float = 0) -> None: ...

    with pytest.raises(BadArguments, match=rf"^job shop\.send: .*{said}") as caught:
        send.prepare(*args, **kwargs)
    assert (caught.value.job, caught.value.path) == ("shop.send", path)
    assert isinstance(caught.value, BadData)


def test_the_place_within_an_argument_is_named(client: Client) -> None:
    @client.job(name="send")
    def send(orders: list[Order]) -> None: ...

    with pytest.raises(BadArguments, match=r"args\.orders\[1\]\.price.*and has|price"):
        send.codec.load('{"args": {"orders": [{"price": "1"}, {"price": "x"}]}}')


def test_bytes_of_a_model_that_are_not_text_are_refused_at_put(client: Client) -> None:
    class Picture(pydantic.BaseModel):
        pixels: bytes

    @client.job(name="show")
    def show(picture: Picture) -> None: ...

    with pytest.raises(BadArguments, match=r"args\.picture: cannot be written as JSON: .*utf-8"):
        show.prepare(Picture(pixels=b"\xff"))


LOADED = [
    ({}, "lacks 'n'"),
    ({"n": 1, "m": 2}, "has unknown 'm'"),
    ({"n": "1"}, r"args\.n: Input should be a valid integer, not '1'"),
    ([], "args: Input should be an object"),
    (None, "args: Input should be an object"),
]


@pytest.mark.parametrize(("args", "said"), LOADED)
def test_a_read_names_the_difference(client: Client, args: Any, said: str) -> None:
    @client.job(name="count")
    def count(n: int) -> None: ...

    with pytest.raises(BadArguments, match=said):
        count.codec.load(json.dumps({"job": "count", "args": args}))


def test_arguments_may_be_left_out_altogether(client: Client) -> None:
    @client.job()
    def tick() -> None: ...

    @client.job()
    def count(n: int) -> None: ...

    assert tick.codec.load('{"job": "tick"}') == {}
    assert tick.codec.load('{"job": "tick", "args": {}, "headers": {"a": "b"}, "later": 1}') == {}
    with pytest.raises(BadArguments, match="lacks 'n'"):
        count.codec.load('{"job": "count"}')


# --- without pydantic


@pytest.mark.usefixtures("without_pydantic")
def test_without_pydantic_names_and_types_of_json_are_checked(client: Client) -> None:
    @client.job(name="send")
    def send(to: str, n: int | None = None, amount: float = 0, tags: list[str] = [], more: dict[str, Any] = {}): ...  # noqa: B006

    assert isinstance(send.codec, Plain)
    assert received(send, "ada", amount=1, tags=["x"]) == {"to": "ada", "amount": 1, "tags": ["x"]}
    for args, said in (
        ({}, "lacks 'to'"),
        ({"to": 1}, "args.to: must be a string, not int"),
        ({"to": "a", "n": True}, "args.n: must be int or null, not a boolean"),
        ({"to": "a", "m": 1}, "has unknown 'm'"),
    ):
        with pytest.raises(BadArguments, match=said):
            send.prepare(**args)
        with pytest.raises(BadArguments, match=said):
            send.codec.load(json.dumps({"args": args}))


@pytest.mark.usefixtures("without_pydantic")
@pytest.mark.parametrize("annotation", [datetime, Order, Colour, bytes, list[UUID], dict[int, str], tuple[int, int]])
def test_without_pydantic_other_types_are_refused_at_registration(client: Client, annotation: Any) -> None:
    def send(it): ...

    send.__annotations__ = {"it": annotation}
    with pytest.raises(ValueError, match=r"test_arguments.py:\d+\): parameter 'it' .* install 'pgqueue-core\[jobs\]'"):
        client.job(name="send")(send)


# --- registration


def stars(*args: int) -> None: ...
def double_stars(**kwargs: int) -> None: ...
def positional(a: int, /) -> None: ...
def bad_default(a: int = "x") -> None: ...  # type: ignore[assignment]
def unserialisable(a: Any = object()) -> None: ...  # noqa: B008
def unresolvable(a: int, b: OrderedDict[str, int]) -> None: ...
def nonsense(a: Callable[[], int]) -> None: ...


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (stars, r"\*args"),
        (double_stars, r"\*\*kwargs"),
        (positional, "positional-only parameter a"),
        (bad_default, "default of parameter 'a', 'x', cannot be an argument: Input should be a valid integer"),
        (unserialisable, "default of parameter 'a', <object object.*cannot be an argument"),
        (unresolvable, r"annotation .OrderedDict\[str, int\]. of parameter 'b' cannot be resolved: .*TYPE_CHECKING"),
        (nonsense, "parameter 'a' is annotated with .*cannot be an argument"),
    ],
)
def test_a_function_that_cannot_be_a_job_is_refused_with_its_place(
    client: Client, function: Callable[..., Any], said: str
) -> None:
    with pytest.raises(ValueError, match=rf"(?s)^job {function.__name__} \(.*test_arguments.py:\d+\).*{said}"):
        client.job(name=function.__name__)(function)
    assert not client.jobs


def test_a_decorator_without_parentheses_is_refused(client: Client) -> None:
    with pytest.raises(ValueError, match=r"write @client\.job\(\) above .*bare: the first argument"):

        @client.job  # type: ignore[arg-type]
        def bare() -> None: ...


def test_two_jobs_of_one_name_are_refused_with_both_places(client: Client) -> None:
    client.job(name="send", aliases=["old"])(stars_free)
    for name, aliases in (("send", ()), ("other", ("send",)), ("old", ())):
        with pytest.raises(ValueError, match=r"two jobs are named '(send|old)': .*py:\d+ and .*py:\d+"):
            client.job(name=name, aliases=aliases)(positional_free)
    assert list(client.jobs) == ["send"]
    client.job(name="send")(stars_free)  # the same function: its module was loaded again


def stars_free(a: int) -> None: ...
def positional_free(a: int) -> None: ...


@pytest.mark.parametrize("name", ["", "a\0b", "a\nb", "x" * 201])
def test_a_name_that_cannot_be_is_refused(client: Client, name: str) -> None:
    with pytest.raises(ValueError, match="a job's name"):
        client.job(name=name)(stars_free)


def test_a_result_that_json_cannot_hold_is_refused_at_registration_if_it_is_to_be_kept(client: Client) -> None:
    def open_it() -> Callable[[], int]: ...  # type: ignore[empty-body]

    client.job(name="unkept")(open_it)
    with pytest.raises(ValueError, match="its results are kept, and they are annotated with"):
        client.job(name="kept", keep_result=60)(open_it)


def test_a_job_is_its_function_when_called_and_pickles_by_its_name(client: Client) -> None:
    def double(a: int) -> int:
        """Doubles."""
        return 2 * a

    double.__name__ = "picked"
    picked: Any = client.job()(double)
    picked.__qualname__ = "picked"
    assert (picked(3), picked.__doc__, picked.__name__) == (6, "Doubles.", "picked")
    picked.__module__ = __name__
    globals()["picked"] = picked
    assert pickle.loads(pickle.dumps(picked)) is picked


def test_the_task_is_no_argument(client: Client) -> None:
    @client.job(name="send")
    def send(task: Task, to: str) -> None: ...

    assert list(send.signature.parameters) == ["to"]
    assert json.loads(sent(send, "ada")) == {"job": "send", "sig": send.version, "args": {"to": "ada"}}
    with pytest.raises(BadArguments, match="has unknown 'task'"):
        send.prepare("ada", task=1)  # type: ignore[call-arg]


def test_defaults_of_a_client_fill_what_a_job_leaves_open(client: Client) -> None:
    @client.job(priority=3)
    def send() -> None: ...

    client.job_defaults(queue="mail", retry=pgqueue.Retry(attempts=2), keep_result=timedelta(minutes=1), priority=1)
    assert (send.queue, send.settings.keep_result, send.settings.priority) == ("mail", 60.0, 3)
    assert send.settings.retry == pgqueue.Retry(attempts=2)


@pytest.mark.parametrize(
    "wrong",
    [
        {"retry": 3},
        {"keep_result": -1},
        {"timeout": 0},
        {"isolation": "fork"},
        {"queue": ""},
        {"priority": 1.5},
        {"ttl": "1"},
    ],
    ids=str,
)
def test_a_policy_that_cannot_be_is_refused(client: Client, wrong: dict[str, Any]) -> None:
    (name,) = wrong
    word = {"queue": "queue's name"}.get(name, name)
    with pytest.raises(ValueError, match=word):
        client.job(**wrong)
    with pytest.raises(ValueError, match=word):
        client.job_defaults(**wrong)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"attempts": 0}, "attempts"),
        ({"headers": {"a": 1}}, "headers"),
        ({"queue": ""}, "queue"),
        ({"delay": -1}, "delay"),
        ({"colour": 1}, "colour"),
    ],
)
def test_an_option_that_cannot_be_is_refused(client: Client, wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        client.job(name="send")(stars_free).options(**wrong)


def test_options_go_with_the_task(client: Client) -> None:
    job = client.job("mail", name="send", priority=4, ttr=5)(stars_free)
    put = job.options(queue="other", headers={"a": "b"}, attempts=2, priority=1, delay=3).prepare(7)
    assert put.queue == "other"
    assert put.data == {"job": "send", "sig": job.version, "args": {"a": 7}, "headers": {"a": "b"}, "attempts": 2}
    assert (put.options.priority, put.options.delay, put.options.ttr) == (1, 3.0, 5.0)
