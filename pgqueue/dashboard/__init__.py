"""The dashboard: web pages that show the queues of a database and, where it is granted, act on them.

`pgqueue dashboard` serves it. In an application it is one line:

    app.mount("/queues", dashboard(client))                                             # FastAPI, Starlette
    app.wsgi_app = DispatcherMiddleware(app.wsgi_app, {"/queues": wsgi_dashboard(client)})      # Flask

docs/guides/dashboard.md has Quart and Django, and examples of log-ins.

From the ground up: `settings`, `reading` and `showing` (a page's questions, and the look of values), `drawing` (SVG),
`pages` (a function for each page, which reads), `acting` (a function for each button), `live` (the events of browsers),
`guarding` (headers, tokens, passwords) and `application`, which puts them together.
"""

from __future__ import annotations

try:
    import jinja2 as _jinja2  # noqa: F401  # only to say which extra is missing
    import starlette as _starlette  # noqa: F401  # likewise
except ImportError as error:
    raise ImportError(
        "the dashboard needs Starlette and Jinja2: run `pip install '.[dashboard]'` in a checkout of pgqueue",
        name=error.name,
    ) from error

from .application import dashboard
from .settings import HIDDEN
from .wsgi import wsgi_dashboard

__all__ = ["HIDDEN", "dashboard", "wsgi_dashboard"]
