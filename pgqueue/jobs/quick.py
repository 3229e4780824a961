"""Arguments of JSON's own types, read by msgspec if it is installed (the extra `fast`), in half of pydantic's time.

Pydantic decides: if msgspec refuses arguments, pydantic reads them again, and either accepts them or names the fault.
So msgspec must accept nothing that pydantic refuses, and must read the same value. That is the case for the types here,
since both are strict: neither takes 1.0, "1" or true for an int, both take 1 for a float, and msgspec refuses every
number that pydantic makes an infinity. Annotations of other types leave a job to pydantic, and so do defaults: removing
the arguments that were not given from msgspec's record costs more than msgspec saves.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Callable
from typing import Any

from .signature import Signature

Load = Callable[[str], dict[str, Any]]

SIMPLE = (str, int, float, bool)


def reader(signature: Signature, otherwise: Load) -> Load | None:
    """A function that reads the arguments in the data of a task, and calls `otherwise` for arguments that it cannot
    read. None: msgspec or the parameters do not allow it."""
    try:
        import msgspec
    except ImportError:
        return None
    parameters = signature.parameters.values()
    if any(one.optional or not _simple(one.annotation) for one in parameters):
        return None
    fields = [(one.name, one.annotation) for one in parameters]
    arguments = msgspec.defstruct("Arguments", fields, kw_only=True, forbid_unknown_fields=True)
    envelope = msgspec.defstruct("Envelope", [("args", arguments)])  # other keys are ignored
    decode: Callable[[str], Any] = msgspec.json.Decoder(envelope).decode
    as_dict, refused = msgspec.structs.asdict, (msgspec.MsgspecError, UnicodeError, RecursionError)

    def load(text: str) -> dict[str, Any]:
        try:
            return as_dict(decode(text).args)
        except refused:
            pass  # not otherwise() in here: its error would have msgspec's as its context
        return otherwise(text)

    return load


def _simple(annotation: Any) -> bool:
    """Whether both libraries take the same for it."""
    origin, inner = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):  # of one type and None: two types could both fit
        rest = [one for one in inner if one is not type(None)]
        return len(rest) == 1 and len(inner) == 2 and _simple(rest[0])
    if origin is list:
        return _simple(inner[0])
    if origin is dict:
        return inner[0] is str and _simple(inner[1])
    return annotation in SIMPLE
