"""Output for people: lines, tables and progress, which the command line, the demo and the benchmarks share.

Rich draws them, if the extra `cli` or `embedded` is installed, and is imported when the first of them is
drawn. Without it, in a pipe and with TERM=dumb there are plain lines without escape sequences. Every text is escaped by
`_values.printable`, and none is read as Rich's markup.
"""

from .console import Console
from .drawing import drawn
from .progress import Progress
from .tables import Column, Table
from .wording import ago, duration, figure

__all__ = ["Column", "Console", "Progress", "Table", "ago", "drawn", "duration", "figure"]
