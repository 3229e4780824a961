"""The Python reference, from docstrings as pgqueue writes them: Google's sections, `names` in backticks, plain text.

    {error-tree}    the tree of errors as a nested list, with the SQLSTATEs that become them

A name is documented where it is imported from, `pgqueue.Client`, and not where it is defined. Annotations name the
module of definition, so a reference that is not found is searched by its last part among the public names. An
annotation that names an internal type stays text. A class shows its constructor if its docstring has arguments: the
others are returned by methods, and their constructors are internal.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util.docutils import SphinxDirective

from pgqueue import errors
from pgqueue._calls import sqlstates

HOMES = (
    "pgqueue",
    "pgqueue.types",
    "pgqueue.errors",
    "pgqueue.migrate",
    "pgqueue.monitors",
    "pgqueue.embedded",
    "pgqueue.testing",
)
SPECIAL = re.compile(r"(`[^`]*`)|([*|]|(?<=\w)_(?!\w))")


def plain(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Outside of backticks nothing is markup; a module's own docstring is for readers of the source."""
    text = SPECIAL.sub(lambda found: found[1] or "\\" + found[2], "\n".join(lines))
    lines[:] = [] if what == "module" else text.split("\n")


def resolve(app: Sphinx, env: BuildEnvironment, node: pending_xref, inner: nodes.Element) -> nodes.Element | None:
    """Find `pgqueue.client.Client`, or `Client` in a string annotation, as `pgqueue.Client`."""
    if node.get("refdomain") != "py":
        return None
    domain = env.domains.python_domain
    last = node["reftarget"].rpartition(".")[2]
    for home in HOMES:
        if (target := f"{home}.{last}") in domain.objects and target != node["reftarget"]:
            document = node.get("refdoc", env.docname)
            return domain.resolve_xref(env, document, app.builder, "class", target, node, inner)
    of_an_annotation = "refwarn" not in node and node["reftype"] in ("class", "obj")
    return inner if of_an_annotation else None


def signature(
    app: Sphinx, what: str, name: str, obj: Any, options: Any, arguments: str | None, result: str | None
) -> tuple[str, str | None] | None:
    hidden = what in ("class", "exception") and "\nArgs:\n" not in inspect.cleandoc(obj.__doc__ or "")
    return ("", None) if hidden and arguments else None


def skip(app: Sphinx, what: str, name: str, obj: Any, skipped: bool, options: Any) -> bool | None:
    """Leave out members from other packages, such as Exception.add_note, and errors that say that they are internal."""
    home = getattr(getattr(obj, "__objclass__", obj), "__module__", None) or "pgqueue"
    internal = (getattr(obj, "__doc__", None) or "").startswith("Internal")
    return True if internal or not home.startswith("pgqueue") else None


def states() -> dict[type[Exception], list[str]]:
    """The SQLSTATEs of each error."""
    found: dict[type[Exception], list[str]] = {}
    for state, error in sqlstates._MISUSE.items():
        found.setdefault(error, []).append(state)
    return found


class ErrorTree(SphinxDirective):
    """`{error-tree}`"""

    def run(self) -> list[nodes.Node]:
        lines = StringList(list(self._lines(errors.Error, "", states())), "errors.py")
        return self.parse_text_to_nodes("\n".join(lines))

    def _lines(self, error: type[Exception], indent: str, codes: dict[type[Exception], list[str]]) -> Iterator[str]:
        said = (error.__doc__ or "").strip().partition("\n")[0]
        numbers = f" ({', '.join(f'`{code}`' for code in codes[error])})" if error in codes else ""
        yield f"{indent}- {{py:exc}}`~pgqueue.errors.{error.__name__}`{numbers}: {said}"
        for below in error.__subclasses__():
            if below.__module__ == errors.__name__ and not (below.__doc__ or "").startswith("Internal"):
                yield from self._lines(below, indent + "  ", codes)


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("autodoc-process-docstring", plain, priority=400)  # before napoleon
    app.connect("autodoc-process-signature", signature)
    app.connect("autodoc-skip-member", skip)
    app.connect("missing-reference", resolve)
    app.add_directive("error-tree", ErrorTree)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
