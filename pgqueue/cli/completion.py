"""`pgqueue completion`: the completion script of a shell, and the queue names that it completes."""

from __future__ import annotations

import click
from click.shell_completion import (
    BashComplete,
    CompletionItem,
    FishComplete,
    ZshComplete,
    add_completion_class,
    get_completion_class,
)

from .._values import printable
from .names import queue_names
from .plainly import plainly

PROGRAM = "pgqueue"

# click's own scripts insert a value into the command line as it is, so that the shell would run a queue named
# `$(command)`, and they expand `*` and break at commas. zsh and fish quote the inserted value themselves.
BASH = r"""%(complete_func)s() {
    local line
    COMPREPLY=()
    while IFS= read -r line; do
        case $line in
            dir,*) compopt -o dirnames ;;
            file,*) compopt -o default ;;
            plain,*) COMPREPLY+=("${line#plain,}") ;;
        esac
    done < <(IFS=$'\n'; env COMP_WORDS="${COMP_WORDS[*]}" COMP_CWORD="$COMP_CWORD" %(complete_var)s=bash_complete "$1")
}

complete -o nosort -F %(complete_func)s %(prog_name)s
"""
FISH = r"""function %(complete_func)s
    set -l response (env %(complete_var)s=fish_complete COMP_WORDS=(commandline -cp | string collect) \
        COMP_CWORD=(commandline -t | string collect) %(prog_name)s)
    for completion in $response
        set -l metadata (string split --max 1 "," -- $completion)
        switch $metadata[1]
            case dir
                __fish_complete_directories $metadata[2]
            case file
                __fish_complete_path $metadata[2]
            case plain
                printf "%%s\n" $metadata[2]
        end
    end
end

complete --no-files --command %(prog_name)s --arguments "(%(complete_func)s)"
"""


class Bash(BashComplete):
    source_template = BASH

    def format_completion(self, item: CompletionItem) -> str:
        return f"{item.type},{printable.shell_word(item.value) or item.value}"  # an option is no word


class Fish(FishComplete):
    source_template = FISH


def register() -> None:
    """Let click use these scripts. Only in a process that completes `pgqueue`: click has one class for each shell."""
    for kind in (Bash, Fish, ZshComplete):
        add_completion_class(kind)


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
@plainly
def completion(context: click.Context, shell: str) -> None:
    """Print the completion script of a shell. For example `source <(pgqueue completion bash)`."""
    register()
    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(context.find_root().command, {}, PROGRAM, "_PGQUEUE_COMPLETE").source())


def offered(context: click.Context, incomplete: str) -> list[str]:
    """The queue names to complete `incomplete` by.

    A name that cannot be one printable word of a shell is left out. Under `flask pgqueue` the script is click's own, so
    all names that need quotes are left out.
    """
    root = context.find_root()
    words = {name: printable.shell_word(name) for name in queue_names(root.params.get("dsn"), incomplete)}
    return [name for name, word in words.items() if word is not None and (word == name or root.info_name == PROGRAM)]
