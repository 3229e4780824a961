"""Lines on standard input as the data of tasks. They are read one by one; an error names its line."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from typing import Any

from .. import BadData
from .plainly import WRONG, Fault
from .values import read_json


class Lines:
    """The data of each line that is not empty. Of past lines it keeps only the numbers."""

    def __init__(self, stream: Iterable[bytes], text: bool) -> None:
        self._stream = stream
        self._text = text
        self._numbers = array("q")

    def __iter__(self) -> Iterator[Any]:
        for number, line in enumerate(self._stream, 1):
            if line.strip():
                self._numbers.append(number)
                yield self._read(number, line)

    def fault(self, error: BadData, first: int) -> Fault:
        """The error of one line, for data that were put together; `first` is the index of the first of them."""
        index, _, path = error.path.removeprefix("[").partition("]")
        return Fault(f"line {self._numbers[first + int(index)]}: {path}: {error.reason}", WRONG)

    def _read(self, number: int, line: bytes) -> Any:
        try:
            decoded = line.decode().rstrip("\r\n")
            return decoded if self._text else read_json(decoded)
        except UnicodeDecodeError as error:
            raise Fault(f"line {number} is not UTF-8: byte {error.start + 1}", WRONG) from None
        except ValueError as error:
            raise Fault(f"line {number} is {error}", WRONG) from None
