"""The dashboard in applications of FastAPI, Starlette, Flask and Django, behind a log-in of each.

    uvicorn examples.dashboards:fastapi_app                  # at the top of the checkout
    flask --app examples.dashboards:flask_app run
    uvicorn examples.dashboards:django_asgi
    python -m wsgiref.simple_server                          # any WSGI server will do: examples.dashboards:django_wsgi

Each has it at /queues/. The example's log-in is a header, X-User, that a proxy sets, for FastAPI and Starlette; the
session of Flask; and the user of Django.
"""

from __future__ import annotations

import os

import django
from django.conf import settings as django_settings
from fastapi import FastAPI
from flask import Flask, session
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.routing import Mount
from werkzeug.middleware.dispatcher import DispatcherMiddleware

import pgqueue
from pgqueue.dashboard import dashboard, wsgi_dashboard

OPERATORS = {"ada", "grace"}


# --- FastAPI and Starlette


def is_operator(request: Request) -> bool:
    return request.headers.get("x-user") in OPERATORS


fastapi_app = FastAPI()
fastapi_app.mount("/queues", dashboard(pgqueue.AsyncClient(), may_act=is_operator))

starlette_app = Starlette(routes=[Mount("/queues", dashboard(pgqueue.AsyncClient(), may_act=is_operator))])


# --- Flask

flask_app = Flask(__name__)
flask_app.secret_key = os.environ.get("SECRET_KEY", "only for this example")


@flask_app.post("/log-in/<user>")
def log_in(user: str) -> str:
    session["user"] = user
    return user


def is_flask_operator(request: Request) -> bool:
    """Read Flask's session from the environment of the request."""
    with flask_app.request_context(request.scope["wsgi_environ"]):
        return session.get("user") in OPERATORS


flask_pages = wsgi_dashboard(pgqueue.Client(), may_act=is_flask_operator)
flask_app.wsgi_app = DispatcherMiddleware(flask_app.wsgi_app, {"/queues": flask_pages})  # type: ignore[method-assign]


# --- Django

if not django_settings.configured:
    django_settings.configure(
        SECRET_KEY=os.environ.get("SECRET_KEY", "only for this example"),
        ALLOWED_HOSTS=["*"],
        ROOT_URLCONF=__name__,
        INSTALLED_APPS=["django.contrib.sessions"],
        SESSION_ENGINE="django.contrib.sessions.backends.signed_cookies",
        MIDDLEWARE=["django.contrib.sessions.middleware.SessionMiddleware"],
    )
    django.setup()

from django.contrib.sessions.backends.signed_cookies import SessionStore  # noqa: E402
from django.core.asgi import get_asgi_application  # noqa: E402
from django.core.wsgi import get_wsgi_application  # noqa: E402
from django.http import HttpRequest, HttpResponse  # noqa: E402
from django.urls import path  # noqa: E402


def log_in_to_django(request: HttpRequest, user: str) -> HttpResponse:
    request.session["user"] = user
    return HttpResponse(user)


urlpatterns = [path("log-in/<user>", log_in_to_django)]


def is_django_operator(request: Request) -> bool:
    """Read Django's session by its cookie."""
    return SessionStore(request.cookies.get("sessionid")).get("user") in OPERATORS


django_asgi = Starlette(
    routes=[
        Mount("/queues", dashboard(pgqueue.AsyncClient(), may_act=is_django_operator)),
        Mount("/", get_asgi_application()),  # type: ignore[arg-type]  # django-stubs want a dict for the scope
    ]
)
django_pages = wsgi_dashboard(pgqueue.AsyncClient(), may_act=is_django_operator)
django_wsgi = DispatcherMiddleware(get_wsgi_application(), {"/queues": django_pages})
