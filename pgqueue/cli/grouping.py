"""Groups of commands: their help in sections and whole sentences, and a suggestion for a mistyped name."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence

import click

WHOLE = 10_000  # characters: more than the first sentence of any help


class Group(click.Group):
    """A group whose help shows the first sentence of each command, folded and never cut."""

    #: The heading of each section, and the commands of it. Those of no section are last.
    sections: Mapping[str, Sequence[str]] = {}

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        shown = {name: found for name in self.list_commands(ctx) if (found := self.get_command(ctx, name))}
        width = max(map(len, shown), default=0)
        for heading, names in self._sectioned(shown):
            with formatter.section(heading):
                formatter.write_dl([(name.ljust(width), sentence(shown[name])) for name in names], col_max=width + 2)

    def _sectioned(self, names: Iterable[str]) -> list[tuple[str, list[str]]]:
        left = list(names)
        found = []
        for heading, members in self.sections.items():
            found.append((heading, [name for name in members if name in left]))
            left = [name for name in left if name not in members]
        rest = "Other commands" if self.sections else "Commands"
        return [(heading, members) for heading, members in [*found, (rest, left)] if members]

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:  # click 8.4 suggests names too, but not those of commands that are not loaded
            if not args[0].startswith("-") and not getattr(error, "possibilities", None):
                error.message += suggestion(args[0], self.list_commands(ctx))  # type: ignore[misc]  # final in its annotation only
            raise


def sentence(command: click.Command) -> str:
    """The first sentence of a command's help, with its full stop."""
    text = command.get_short_help_str(WHOLE)
    return text if not text or text[-1] in ".:?!" else f"{text}."


def suggestion(name: str, known: Iterable[str]) -> str:
    """` Did you mean 'stats'?`, or an empty text if no known name is near to this one."""
    near = difflib.get_close_matches(name, list(known), n=3)
    return f" Did you mean {' or '.join(map(repr, near))}?" if near else ""
