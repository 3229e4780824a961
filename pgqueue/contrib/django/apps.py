"""The Django app `pgqueue`."""

from __future__ import annotations

from django.apps import AppConfig
from django.db.backends.signals import connection_created


class PgqueueConfig(AppConfig):
    name = "pgqueue.contrib.django"
    label = "pgqueue"
    verbose_name = "pgqueue"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from . import checks, clients

        checks.register()
        connection_created.connect(clients.let_go_of_test_databases)
