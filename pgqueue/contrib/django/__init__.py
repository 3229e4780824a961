"""pgqueue for Django: add "pgqueue.contrib.django" to INSTALLED_APPS.

from pgqueue.contrib.django import handler, queue

with transaction.atomic():
    order = Order.objects.create(...)
    queue("mail").put({"order": order.pk})  # takes effect when the transaction commits

@handler("mail")  # in an app's tasks.py; `manage.py pgqueue worker` runs it
def send_mail(data): ...
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .clients import client, queue
from .databases import database
from .handlers import handler
from .jobs import job

if TYPE_CHECKING:
    from .backend import PgqueueBackend

__all__ = ["PgqueueBackend", "client", "database", "handler", "job", "queue"]


def __getattr__(name: str) -> Any:
    """Load the backend of django.tasks only where it is used."""
    if name != "PgqueueBackend":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from .backend import PgqueueBackend

    return PgqueueBackend
