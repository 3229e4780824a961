"""Lines on standard input as the data of tasks. They are read one by one; an error names its line."""

from __future__ import annotations

import os
import stat
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
        self._size = _size(stream)
        self.bytes = 0  # that were read

    def __iter__(self) -> Iterator[Any]:
        for number, line in enumerate(self._stream, 1):
            self.bytes += len(line)
            if line.strip():
                self._numbers.append(number)
                yield self._read(number, line)

    @property
    def part(self) -> float | None:
        """The part of the input that was read, from 0 to 1; None if it has no known size, as a pipe."""
        return min(1.0, self.bytes / self._size) if self._size else None

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


def _size(stream: Iterable[bytes]) -> int | None:
    """The bytes of a file from its present place on; None if it is no file."""
    try:
        found = os.fstat(stream.fileno())  # type: ignore[attr-defined]  # if it is missing, there is no file
        return found.st_size - stream.tell() if stat.S_ISREG(found.st_mode) else None  # type: ignore[attr-defined]  # as above
    except (OSError, AttributeError, ValueError):
        return None
