"""The models of the views, so that Django knows them and creates their permissions. The schema is not changed.

The columns are left out, since Django does not compare the columns of models that it does not manage.
"""

from typing import Any, ClassVar

from django.db import migrations, models

BIG: Any = models.BigIntegerField(primary_key=True, serialize=False)
TEXT: Any = models.TextField(primary_key=True, serialize=False)


def view(model: str, name: str, key: str, kind: Any, permissions: tuple[str, ...] = (), **more: Any) -> Any:
    options = {"managed": False, "db_table": f'"pgqueue"."{name}"', "default_permissions": permissions, **more}
    return migrations.CreateModel(model, [(key, kind)], options)


class Migration(migrations.Migration):
    dependencies: ClassVar = [("pgqueue", "0001_initial")]
    operations: ClassVar = [
        view("Queue", "queues", "name", TEXT, ("view", "change", "delete"), ordering=("name",)),
        view("Stats", "stats", "queue", TEXT, verbose_name_plural="stats"),
        view("Rates", "rates", "queue", TEXT, verbose_name_plural="rates"),
        view("Task", "tasks", "id", BIG, ("view", "change", "delete")),
        view("Result", "results", "id", BIG, ("view",)),
        view("Schedule", "schedules", "name", TEXT, ("view", "change", "delete")),
        view("Take", "takes", "id", BIG, ("view", "change")),
        view("Session", "sessions", "id", BIG, ("view",)),
        view("Health", "health", "name", TEXT, ("view",), verbose_name="health check"),
        view("Lock", "locks", "fence", BIG, ("view",)),
    ]
