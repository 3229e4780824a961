"""The privileges of roles on a queue, from the view pgqueue.privileges."""

from __future__ import annotations

import re

from django.db import connections
from django.utils.safestring import SafeString

from pgqueue._engine import borrowed

from ...._calls.call import Call, Rows, query
from ..models import Queue
from . import showing


def rights(queue: Queue) -> SafeString | str:
    """The roles with their verbs, one a line, after a line that says whether the queue is restricted."""
    found = borrowed.run(connections[str(queue._state.db)], _privileges(queue.name))
    rows = [(role, verbs, f" (pattern {pattern})" if pattern else "") for role, verbs, pattern, _ in found if role]
    restricted = any(row[3] for row in found)
    kind = "restricted to the roles that were granted it" if restricted else "open"
    return showing.lines("{}{}{}", [(kind, "", "")]) + showing.lines("<br><b>{}</b>: {}{}", rows) if rows else kind


def _privileges(name: str) -> Call[Rows]:
    """Role, verbs, pattern, and whether the queue is restricted: a row without a role if there is no privilege."""
    return query(
        "SELECT p.role, pg_catalog.string_agg(p.verb, ', ' ORDER BY p.verb), p.pattern, q.granted_to IS NOT NULL"
        " FROM pgqueue.queues q LEFT JOIN pgqueue.privileges p ON p.queue OPERATOR(pg_catalog.=) q.name"
        " OR p.pattern IS NOT NULL AND (q.granted_to IS NULL OR p.verb OPERATOR(pg_catalog.=) 'monitor')"
        " WHERE q.name OPERATOR(pg_catalog.=) %s::pg_catalog.text"
        " GROUP BY p.role, p.queue, p.pattern, q.granted_to ORDER BY 1, p.queue, 3",
        (name,),
        lambda rows: [row for row in rows if row[2] is None or _matches(row[2], name)],
    )


def _matches(pattern: str, name: str) -> bool:
    """Whether a name matches a pattern of a grant, in which * matches any characters."""
    return re.fullmatch(".*".join(map(re.escape, re.split(r"\*+", pattern))), name, re.DOTALL) is not None
