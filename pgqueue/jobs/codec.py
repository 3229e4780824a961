"""The arguments of a job as JSON and back, by the annotations: `Codec` is the part that the rest of the layer uses.

With pydantic (the extra `jobs`) the annotations may be pydantic models, dataclasses, enums, datetimes, UUIDs, Decimals,
bytes and all other types that pydantic knows (typed.py). Without it they are JSON's own types (plain.py).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Protocol

from .plain import Plain
from .signature import Signature


class Codec(Protocol):
    """Checks and converts the arguments and the result of one job."""

    def dump(self, values: dict[str, Any]) -> dict[str, Any]:
        """Arguments as they were given to put, by name, as JSON values. Raises BadArguments."""

    def load(self, text: str) -> dict[str, Any]:
        """The arguments in the data of a task, which is JSON text, as the function gets them. Raises BadArguments."""

    def load_args(self, args: object) -> dict[str, Any]:
        """The same, of the JSON values that an upgrade returned. Raises BadArguments."""

    def result(self, value: Any) -> Any:
        """A result as JSON values. Raises ValueError."""

    def schema(self) -> str:
        """The types of the arguments, as text: the same for the same annotations."""


def codec(signature: Signature, function: Callable[..., Any], *, keeps_result: bool, plain: bool = False) -> Codec:
    """The codec for a signature. Raises ValueError for an annotation or a default that cannot be used. Names the place.

    Args:
        keeps_result: whether the annotation of the result has to be one that JSON can hold.
        plain: whether the annotations are JSON's own types, so that there is nothing to convert.
    """
    kind = Plain if plain else _kind()
    return kind(signature, function, keeps_result)


@functools.cache
def _kind() -> Callable[[Signature, Callable[..., Any], bool], Codec]:
    """The codec for annotations of all kinds. The first job imports pydantic: a program without jobs needs none."""
    try:
        from .typed import Typed
    except ImportError:  # pydantic is not installed
        return Plain
    return Typed
