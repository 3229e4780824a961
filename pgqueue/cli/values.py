"""The types of values on a command line. Each value is checked before the command connects to a server."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from typing import Any

import click
from click.shell_completion import CompletionItem

from .._calls.messages import claim_id
from .._values import arguments
from .._values.marked import restored


class Checked(click.ParamType):  # type: ignore[type-arg]  # generic in newer versions of click
    """A value that a function reads; the user sees the message of its ValueError."""

    def __init__(self, name: str, read: Callable[[str], Any]) -> None:
        self.name = name
        self.read = read

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):  # a default
            return value
        try:
            return self.read(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


class QueueName(Checked):
    """The name of a queue. The shell completes it from the database, if that answers soon."""

    def __init__(self) -> None:
        super().__init__("queue", lambda value: arguments.queue_name(arguments.text(value, "a queue's name")))

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        from .completion import offered

        return [CompletionItem(name) for name in offered(ctx, incomplete)]


UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def read_text(text: str) -> str:
    """An argument as it is. Raises ValueError if it was not UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"not UTF-8: byte {len(text[: error.start].encode()) + 1}") from None
    return text


def read_json(text: str) -> Any:
    """The value of a JSON text. Raises ValueError, which names the place; also for NaN and Infinity."""
    read_text(text)
    try:
        return restored(json.loads(text, parse_constant=_refuse))
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error.msg[:1].lower()}{error.msg[1:]} at character {error.pos + 1}") from None
    except RecursionError:
        raise ValueError("not JSON: nested too deep") from None


def _refuse(name: str) -> None:
    raise ValueError(f"not JSON: there is no {name}")


def number(text: str) -> float:
    """A number of a text. Raises ValueError."""
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a number") from None


def _duration(text: str) -> float | None:
    """Seconds of a text as 90, 90s, 15m, 1h or 2d. Raises ValueError."""
    unit = UNITS.get(text[-1:])
    try:
        given = float(text if unit is None else text[:-1])
    except ValueError:
        raise ValueError(f"{text!r} is no duration, such as 90, 90s, 15m, 1h or 2d") from None
    return arguments.seconds("it", given * (unit or 1))


def _positive(text: str) -> float | None:
    return arguments.seconds("it", number(text), positive=True)


def _moment(text: str) -> datetime | None:
    try:
        value = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a time as 2030-01-31T08:00:00Z") from None
    return arguments.moment("it", value)


QUEUE = QueueName()
JSON = Checked("json", read_json)
TASK = Checked("id", arguments.task_id)
CLAIM = Checked("claim", claim_id)
CHANNEL = Checked("channel", arguments.channel_name)
SECONDS = Checked("seconds", lambda text: arguments.seconds("it", number(text)))
POSITIVE_SECONDS = Checked("seconds", _positive)
DURATION = Checked("duration", _duration)
MOMENT = Checked("time", _moment)
COUNT = click.IntRange(min=1, max=arguments.MAX_INT)
PRIORITY = click.IntRange(min=-arguments.MAX_INT - 1, max=arguments.MAX_INT)
LANE = Checked("name", lambda text: arguments.label("lane", text))
KEY = Checked("name", lambda text: arguments.label("key", text))

json_lines = click.option("--json", "as_json", is_flag=True, help="Print one JSON object a line, for scripts.")
timeout = click.option(
    "-t", "--timeout", type=SECONDS, help="Seconds to wait; 0 does not wait. Default: without limit."
)
yes = click.option("-y", "--yes", is_flag=True, help="Do not ask.")
