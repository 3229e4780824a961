"""Arguments by pydantic: checked strictly against the annotations, at put as Python objects, at run as JSON.

Strict: a string is no int and True is no int, in the program that puts as in the database. JSON has no dates, UUIDs,
Decimals, bytes, tuples or sets; these are stored as strings and arrays, and bytes as base64.

Why pydantic and not msgspec: for the types that its users already have, above all models. The validator parses the JSON
text itself: one call gives checked arguments, where another library would first decode. Arguments of JSON's own types
are read by msgspec where it is installed (quick.py).

The arguments are one TypedDict: its validator reports all faults of a call at once, and returns a dict, as a call needs
it. A new serializer is made from the validator's schema, since that of a TypedDict ignores its settings: it writes
bytes as UTF-8 where the validator reads base64. Models keep their own settings in both.
"""

from __future__ import annotations

import json
import reprlib
from base64 import urlsafe_b64encode
from collections.abc import Callable, Sequence
from typing import Any, NotRequired, Required

from pydantic import ConfigDict, JsonValue, TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError, SchemaSerializer
from pydantic_core.core_schema import CoreConfig
from typing_extensions import TypedDict  # Python 3.11 has one that pydantic cannot use

from .._values import data, marked
from ..errors import BadArguments, BadData
from . import quick
from .signature import Parameter, Signature, place

CONFIG = ConfigDict(strict=True, extra="forbid", val_json_bytes="base64", ser_json_bytes="base64", allow_inf_nan=False)
SERIALIZER = CoreConfig(ser_json_bytes="base64", ser_json_inf_nan="constants")  # NaN: data.encode names its place
UNSERIALISABLE = (PydanticSerializationError, ValueError, TypeError, RecursionError)  # UnicodeDecodeError: of bytes

SHOWN = 5  # faults in a message
LARGEST = 1 << 30  # bytes: the limits of data do not apply to data from the database

_typed_dict: Any = TypedDict  # mypy wants its fields as a literal
_short = reprlib.Repr()
_short.maxstring = _short.maxother = 80


class Typed:
    """A codec by pydantic; see Codec."""

    def __init__(self, signature: Signature, function: Callable[..., Any], keeps_result: bool) -> None:
        self._signature = signature
        where = f"job {signature.job} ({place(function)})"
        for one in signature.parameters.values():
            _check(one, where)
        fields = {
            one.name: (NotRequired if one.optional else Required)[_annotation(one)]
            for one in signature.parameters.values()
        }
        arguments = _typed_dict("Arguments", fields)
        arguments.__pydantic_config__ = CONFIG
        envelope = _typed_dict("Envelope", {"args": NotRequired[arguments]})  # other keys are ignored
        self._adapter = adapter = TypeAdapter[Any](arguments)
        self._check_given = adapter.validator.validate_python
        self._read_args = adapter.validator.validate_json
        self._read = TypeAdapter(envelope).validator.validate_json
        self._write = SchemaSerializer(adapter.core_schema, SERIALIZER).to_python
        self._write_result = _result_writer(signature, where, keeps_result)
        self._load_text = quick.reader(signature, self._load) or self._load

    def dump(self, values: dict[str, Any]) -> dict[str, Any]:
        try:
            written: dict[str, Any] = self._write(self._check_given(values), mode="json", by_alias=True)
        except ValidationError as error:
            raise self._bad(error, ("args",)) from None
        except UNSERIALISABLE as error:
            raise self._unserialisable(values) or BadArguments(self._signature.job, "$.args", str(error)) from None
        return written

    def load(self, text: str) -> dict[str, Any]:
        if "$" in text and marked.MARK in text:  # pydantic does not know the form of a text with NUL
            return self.load_args(data.decode(text).get("args", {}))
        return self._load_text(text)

    def _load(self, text: str) -> dict[str, Any]:
        try:
            found: dict[str, Any] = self._read(text)
        except ValidationError as error:
            given = data.decode(text).get("args", {})
            if isinstance(given, dict):
                self._signature.check_names(given)
            raise self._bad(error, ()) from None
        return found["args"] if found else self.load_args({})

    def load_args(self, args: object) -> dict[str, Any]:
        if isinstance(args, dict):
            self._signature.check_names(args)
        try:
            text = data.encode(args, LARGEST)
            loaded: dict[str, Any] = self._read_args(json.dumps(args, default=_base64) if marked.MARK in text else text)
        except ValidationError as error:
            raise self._bad(error, ("args",)) from None
        except BadData as error:
            raise BadArguments(self._signature.job, error.path.replace("$", "$.args", 1), error.reason) from None
        return loaded

    def result(self, value: Any) -> Any:
        return value if self._write_result is None else self._write_result(value)

    def schema(self) -> str:
        try:
            return json.dumps(self._adapter.json_schema(), sort_keys=True)  # the fields of models included
        except Exception:  # a type without a JSON schema
            return self._signature.schema()

    def _bad(self, error: ValidationError, above: Sequence[str]) -> BadArguments:
        faults = error.errors(include_url=False, include_context=False)
        told = [(_path((*above, *fault["loc"])), _reason(fault)) for fault in faults]
        path, reason = told[0]
        more = "".join(f"; {path.removeprefix('$.')}: {reason}" for path, reason in told[1:SHOWN])
        rest = f"; and {len(told) - SHOWN} more" if len(told) > SHOWN else ""
        return BadArguments(self._signature.job, path, reason + more + rest)

    def _unserialisable(self, values: dict[str, Any]) -> BadArguments | None:
        """The fault of the first argument that cannot be written as JSON."""
        for name, value in values.items():
            one = TypeAdapter(_annotation(self._signature.parameters[name]))
            try:
                SchemaSerializer(one.core_schema, SERIALIZER).to_python(value, mode="json", by_alias=True)
            except UNSERIALISABLE as error:
                return BadArguments(self._signature.job, f"$.args.{name}", f"cannot be written as JSON: {error}")
        return None


def _base64(content: bytes) -> str:
    """Bytes as CONFIG reads them."""
    return urlsafe_b64encode(content).decode("ascii")


def _annotation(parameter: Parameter) -> Any:
    """Any, or no annotation, means the types of JSON: other objects would be read back as strings."""
    return JsonValue if parameter.annotation is Any else parameter.annotation


def _adapter(annotation: Any) -> TypeAdapter[Any]:
    """Raises pydantic's error if it has no schema, and TypeError for a type without a form in JSON."""
    adapter: TypeAdapter[Any] = TypeAdapter(annotation)
    if adapter.core_schema["type"] in ("callable", "is-subclass"):
        raise TypeError("JSON cannot hold it")
    return adapter


def _check(parameter: Parameter, where: str) -> None:
    """Raises ValueError: pydantic has no schema for the annotation, or the default does not fit."""
    try:
        adapter = _adapter(_annotation(parameter))
    except Exception as error:  # PydanticUserError and others, also of a user's __get_pydantic_core_schema__
        raise ValueError(
            f"{where}: parameter {parameter.name!r} is annotated with {parameter.annotation!r}, which cannot be an"
            f" argument: {str(error).splitlines()[0]}"
        ) from None
    if not parameter.optional:
        return
    try:
        adapter.validate_python(parameter.default)
        written = SchemaSerializer(adapter.core_schema, SERIALIZER).to_python(parameter.default, mode="json")
        data.encode(written, LARGEST)
    except (*UNSERIALISABLE, ValidationError) as error:
        why = _reason(error.errors()[0]) if isinstance(error, ValidationError) else str(error)
        raise ValueError(
            f"{where}: the default of parameter {parameter.name!r}, {_short.repr(parameter.default)}, cannot be an"
            f" argument: {why}"
        ) from None


def _result_writer(signature: Signature, where: str, needed: bool) -> Callable[[Any], Any] | None:
    """None: results are written as they are. Raises ValueError if it is needed and cannot be."""
    if signature.returns in (Any, None, object):
        return None
    try:
        adapter = _adapter(signature.returns)
        serializer = SchemaSerializer(adapter.core_schema, SERIALIZER)
    except Exception as error:
        if not needed:
            return None
        raise ValueError(
            f"{where}: its results are kept, and they are annotated with {signature.returns!r}, which cannot be"
            f" written as JSON: {str(error).splitlines()[0]}"
        ) from None
    return lambda value: serializer.to_python(value, mode="json", by_alias=True, warnings=False)


def _path(where: Sequence[int | str]) -> str:
    return "$" + "".join(f"[{one}]" if isinstance(one, int) else f".{one}" for one in where)


def _reason(fault: Any) -> str:
    said = fault["msg"]
    return said if fault["type"] in ("missing", "extra_forbidden") else f"{said}, not {_short.repr(fault['input'])}"
