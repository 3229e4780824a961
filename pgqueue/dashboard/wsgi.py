"""The dashboard for servers that speak WSGI: Flask, Django's wsgi.py."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from .. import AsyncClient, Client
from .application import dashboard
from .settings import Actor, MayAct, ShowData

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIApplication


def wsgi_dashboard(
    client: Client | AsyncClient | None = None,
    *,
    may_act: MayAct | None = None,
    actor: Actor | None = None,
    show_data: ShowData | None = None,
    title: str = "pgqueue",
) -> WSGIApplication:
    """The dashboard as a WSGI application. Its browsers ask every two seconds instead of listening to events.

    Args:
        client, may_act, actor, show_data, title: as for dashboard(). The request of the functions has the WSGI
            environment under `request.scope["wsgi_environ"]`.

    Raises:
        ImportError: a2wsgi is not installed; the extra `dashboard` has it.
        ValueError: an argument is not valid.
    """
    try:
        from a2wsgi import ASGIMiddleware
    except ImportError as error:
        raise ImportError(
            "the dashboard needs a2wsgi under WSGI: run `pip install '.[dashboard]'` in a checkout of pgqueue",
            name=error.name,
        ) from error

    app = dashboard(client, may_act=may_act, actor=actor, show_data=show_data, title=title, live=False)
    return cast("WSGIApplication", ASGIMiddleware(cast(Any, app)))
