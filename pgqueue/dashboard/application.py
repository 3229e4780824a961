"""The application: a route for each page, one for all actions, one for events, and an answer for each error."""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from importlib import resources
from typing import Any
from urllib.parse import parse_qsl, quote, unquote

import jinja2
import psycopg
from markupsafe import Markup
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp

from .. import AsyncClient, Client
from .._values.logs import log
from ..errors import (
    ConnectionLost,
    Error,
    NoQueue,
    NoSchedule,
    NotAllowed,
    NotRunning,
    SchemaError,
    ServerError,
    SetupError,
    TaskNotFound,
)
from . import acting, guarding, pages, showing
from .live import Pulse
from .pages import task as task_page
from .reading import Asked, Reader
from .settings import Actor, MayAct, Settings, ShowData, checked

Endpoint = Callable[[Request], Awaitable[Response]]

SAID = "pgqueue_said"  # the cookie with the sentence that an action leaves for the next page
LONGEST_FORM = 100_000  # bytes
LONGEST_SAID = 1500  # characters of that sentence, encoded
#: The kinds of errors that are answers, each with the status and a headline.
ANSWERS: tuple[tuple[tuple[type[Exception], ...], int, str], ...] = (
    ((NoQueue, TaskNotFound, NoSchedule), 404, "It is gone"),
    ((NotAllowed, psycopg.errors.InsufficientPrivilege), 403, "The role of this dashboard may not do that"),
    ((SchemaError, SetupError), 503, "The database needs attention"),
    ((ConnectionLost, ServerError, psycopg.OperationalError), 503, "The database does not answer"),
    ((NotRunning,), 503, "Queues do not work here"),
    ((Error,), 409, "It was refused"),
    ((ValueError,), 400, "That was not understood"),
)


def dashboard(
    client: Client | AsyncClient | None = None,
    *,
    may_act: MayAct | None = None,
    actor: Actor | None = None,
    show_data: ShowData | None = None,
    title: str = "pgqueue",
    live: bool = True,
    hosts: Sequence[str] | None = None,
) -> ASGIApp:
    """The dashboard as an ASGI application, to be mounted in FastAPI, Starlette, Quart or Django.

    Args:
        client: the client whose database it shows, which the application closes. None: one of its own, for
            PGQUEUE_DSN, DATABASE_URL or the embedded server. It has the rights of the client's role.
        may_act: called with the request; True: this viewer sees buttons, and may use them. None: no viewer may.
        actor: called with the request; returns the viewer's name, which the audit trail shows beside the viewer's
            actions, or None. None: the name of Starlette's `request.user`, where there is one.
        show_data: called with the request, the name of a queue and a value that a program stored (data, result,
            progress, a step's value, a queue's metadata); returns the value to show, for example with parts masked, or
            HIDDEN. With it the values of nodes and statuses, which have no queue, are hidden. None: all is shown to
            each viewer.
        title: the headline of all pages, 1 to 100 characters.
        live: whether pages listen to server-sent events. If not, they ask every two seconds.
        hosts: the names for which it answers, as in a browser's address; None: any name.

    Raises:
        ValueError: an argument is not valid.
    """
    settings = checked(may_act, actor, show_data, title, live)
    own = AsyncClient() if client is None else client.aio if isinstance(client, Client) else client
    site = Site(settings, own)

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        yield
        if client is None:
            await own.close()

    routes = [
        *(Route(f"/{page.path}", partial(site.show, page), methods=["GET"]) for page in pages.PAGES),
        Route("/data", site.answering(site.data), methods=["GET"]),
        Route("/act", site.answering(site.act), methods=["POST"]),
        Route("/events", site.events, methods=["GET"]),
        Route("/static/{name}", static, methods=["GET"]),
    ]
    app = Starlette(routes=routes, lifespan=lifespan, exception_handlers={HTTPException: site.not_found})
    return guarding.Guarded(app, hosts)


class Site:
    """The shared objects of the routes: the settings, the reader and the templates."""

    def __init__(self, settings: Settings, client: AsyncClient) -> None:
        self.settings = settings
        self.read = Reader(client)
        self.pulse = Pulse(self.read)
        self.templates = templates()

    # --- pages

    async def show(self, page: pages.Page, request: Request) -> Response:
        """A page, or the page of the error that it met."""
        began = time.perf_counter()
        try:
            visit = self.visit(request)
            found = await page.read(visit)
        except Exception as error:
            return self.failed(request, error)
        response = self.render(request, page.template, {"page": page, "title": page.title, **found}, 200)
        response.headers["Server-Timing"] = f"page;dur={1000 * (time.perf_counter() - began):.1f}"
        return response

    def visit(self, request: Request, given: Asked | None = None) -> pages.Visit:
        asked = given or Asked(request.query_params)
        return pages.Visit(request, asked, self.read, self.settings, self.settings.acts(request))

    def render(self, request: Request, template: str, context: dict[str, Any], status: int) -> Response:
        token = guarding.token_of(request)
        said = unquote(request.cookies.get(SAID, ""))[:LONGEST_SAID]
        is_refresh = "x-live" in request.headers
        whole = self.templates.get_template(template).render(
            request=request,
            settings=self.settings,
            menu=pages.MENU,
            token=token,
            acts=self.settings.acts(request),
            said="" if is_refresh else said,
            actions=acting.ACTIONS,
            alterable=acting.ALTERABLE,
            **context,
        )
        response = Response(whole, status, media_type="text/html")
        guarding.set_token(request, response, token)
        if said and not is_refresh:
            response.delete_cookie(SAID, path=f"{request.scope.get('root_path', '')}/")
        return response

    async def data(self, request: Request) -> Response:
        """All data of a task as text, however long."""
        return PlainTextResponse(await task_page.whole_data(self.visit(request)))

    # --- actions

    async def act(self, request: Request) -> Response:
        """Carry out an action, or ask first; then back to the page of its form."""
        form = await form_of(request)
        if reason := guarding.refusal(request, form.get(guarding.FIELD, "")):
            raise HTTPException(403, reason)
        asked = Asked({**form, **request.query_params})
        visit = self.visit(request, asked)
        if not visit.acts:
            raise HTTPException(403, "you may look at this dashboard, and not act")
        action = acting.ACTIONS.get(asked.text("do") or "")
        if action is None:
            raise ValueError(f"there is no action {asked.text('do')!r}")
        if action.asks is not None and "confirmed" not in form:
            on = await acting.count(visit) if action.counts else None
            context = {"title": action.label, "action": action, "on": on, "form": form, "back": back_of(request)}
            return self.render(request, "confirm.html", context, 200)
        actor = self.settings.name(request)
        with visit.client.audit.acting(actor) if actor else contextlib.nullcontext():
            said = await action.act(visit)
        self.read.forget()
        return self.back(request, said, form.get("back"))

    def back(self, request: Request, said: str, back: str | None) -> Response:
        """To the page of the form, with a sentence."""
        path = f"{request.scope.get('root_path', '')}/"
        response = RedirectResponse(path + own_page(back or back_of(request)), 303)
        value = quote(said[:LONGEST_SAID])[:LONGEST_SAID]
        response.set_cookie(SAID, value, max_age=60, path=path, httponly=True, samesite="strict")
        return response

    # --- events

    async def events(self, request: Request) -> Response:
        """The events of a page, as a browser's EventSource reads them."""
        if self.pulse.is_full:
            return PlainTextResponse("too many browsers: the pages ask by themselves\n", 503)
        try:
            queue = Asked(request.query_params).text("queue")
        except ValueError as error:
            return self.failed(request, error)
        return StreamingResponse(
            self.pulse.events(queue), media_type="text/event-stream", headers={"X-Accel-Buffering": "no"}
        )

    # --- errors

    def answering(self, endpoint: Endpoint) -> Endpoint:
        """The endpoint, whose errors get a page."""

        async def answer(request: Request) -> Response:
            try:
                return await endpoint(request)
            except (HTTPException, ClientDisconnect):
                raise
            except Exception as error:
                return self.failed(request, error)

        return answer

    def failed(self, request: Request, error: Exception) -> Response:
        """The page of an error. An error of another library is a fault of the dashboard: its log has the traceback."""
        for kinds, status, headline in ANSWERS:
            if isinstance(error, kinds):
                said = str(error).partition("\n")[0]
                return self.problem(request, status, headline, said)
        log.exception("the dashboard failed at %s", request.url.path, exc_info=error)
        return self.problem(request, 500, "The dashboard failed", "Its log says why.")

    async def not_found(self, request: Request, error: Exception) -> Response:
        """The page of an unknown address, and of a refused form."""
        if request.scope["path"] == request.scope.get("root_path"):  # without the slash from which addresses begin
            return RedirectResponse(f"{request.scope['path']}/", 307)
        status = error.status_code if isinstance(error, HTTPException) else 500
        detail = error.detail if isinstance(error, HTTPException) else ""
        headline = {403: "It was refused", 404: "There is no such page", 405: "That is not how this page is asked"}
        return self.problem(request, status, headline.get(status, "That was not understood"), detail)

    def problem(self, request: Request, status: int, headline: str, said: str) -> Response:
        context = {"title": headline, "status": status, "sentence": said, "back": back_of(request)}
        return self.render(request, "problem.html", context, status)


def templates() -> jinja2.Environment:
    """The templates, which escape each value."""
    made = jinja2.Environment(
        loader=jinja2.PackageLoader(__package__),
        autoescape=True,
        finalize=showing.finalize,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= showing.FILTERS
    made.globals |= {"link": showing.link, "field": showing.field, "static": static_link}
    return made


async def form_of(request: Request) -> dict[str, str]:
    """The fields of a form. Raises ValueError for one that is too long, or no form."""
    if request.headers.get("content-type", "").partition(";")[0] != "application/x-www-form-urlencoded":
        raise ValueError("an action is the form of a page")
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > LONGEST_FORM:
            raise ValueError(f"a form has at most {LONGEST_FORM:,} bytes")
    return dict(parse_qsl(body.decode("utf-8", "replace"), keep_blank_values=True, max_num_fields=100))


def back_of(request: Request) -> str:
    """The page below the dashboard that sent a request, by its Referer; the overview if that is unknown."""
    base = f"{request.url.scheme}://{request.url.netloc}{request.scope.get('root_path', '')}/"
    referer = request.headers.get("referer", "")
    return own_page(referer.removeprefix(base)) if referer.startswith(base) else ""


def own_page(address: str) -> str:
    """An address if it is a page of the dashboard, else that of the overview."""
    path = address.partition("?")[0]
    known = {page.path for page in pages.PAGES}
    return address if path in known and address.isascii() and address.isprintable() else ""


# --- static files: those of the package, by their name alone


def _files() -> dict[str, tuple[bytes, str]]:
    kinds = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
    folder = resources.files(__package__) / "static"
    return {
        file.name: (file.read_bytes(), kinds[file.name.rpartition(".")[2]])
        for file in folder.iterdir()
        if file.name.rpartition(".")[2] in kinds
    }


FILES = _files()


def static_link(name: str) -> Markup:
    """The address of a static file, with a hash of its contents: browsers keep it until that changes."""
    return Markup("static/{}?{}").format(name, hashlib.sha256(FILES[name][0]).hexdigest()[:12])


async def static(request: Request) -> Response:
    found = FILES.get(request.path_params["name"])
    if found is None:
        raise HTTPException(404, "There is no such file.")
    content, kind = found
    return Response(content, media_type=kind, headers={"Cache-Control": "public, max-age=31536000, immutable"})
