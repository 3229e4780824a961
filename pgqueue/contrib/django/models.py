"""The public views as models, for the admin and for an application's queries. Read-only: use queues to change tasks.

A query returns the rows that its view has at that moment. Django does not manage these models: the migration of the
schema creates the tables, and `makemigrations` finds nothing to do.
"""

# A field has a type only with the plugin of django-stubs, which needs a project's settings.
# mypy: disable-error-code="var-annotated"

from __future__ import annotations

from typing import Any, ClassVar, NoReturn

from django.db import models

from ..._values import data, printable

READ_ONLY = "{0} are read-only: use pgqueue.contrib.django.queue(...), the admin's actions, or SQL"
ACTED_ON = ("view", "change", "delete")


class Json(models.JSONField):
    """A JSON value. One that Python cannot hold, for example a number of 5,000 digits, is its text, an Unreadable."""

    def from_db_value(self, value: Any, expression: Any, connection: Any) -> Any:
        try:
            return super().from_db_value(value, expression, connection)
        except (ValueError, RecursionError):
            return data.Unreadable(value)

    def deconstruct(self) -> Any:
        """As the field that the migration has."""
        name, _, args, options = super().deconstruct()
        return name, "django.db.models.JSONField", args, options


class View(models.Model):
    """A row of one of the views of pgqueue."""

    class Meta:
        abstract = True

    def save(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Raises TypeError."""
        raise TypeError(READ_ONLY.format(self._meta.verbose_name_plural))

    def delete(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Raises TypeError."""
        raise TypeError(READ_ONLY.format(self._meta.verbose_name_plural))


class Queue(View):
    """A queue with its options; `stats` has its counts."""

    name = models.TextField(primary_key=True)
    type = models.TextField(null=True)
    priority = models.IntegerField()
    delay = models.DurationField()
    ttr = models.DurationField("time to run", null=True)
    ttl = models.DurationField("time to live", null=True)
    maxlen = models.IntegerField(null=True)
    max_takes = models.IntegerField(null=True)
    capacity = models.IntegerField(null=True)
    max_size = models.IntegerField(null=True)
    keep_done = models.DurationField(null=True)
    expires = models.DurationField(null=True)
    dead_letter = models.TextField(null=True)
    dead_letter_key = models.TextField(null=True)
    exclusive = models.BooleanField()
    temporary = models.BooleanField()
    auto_delete = models.BooleanField()
    listed = models.BooleanField()
    draining = models.BooleanField()
    paused_until = models.DateTimeField(null=True)
    metadata = Json(null=True)
    created_at = models.DateTimeField()

    stats: ClassVar[Any]
    rates: ClassVar[Any]

    class Meta:
        managed = False
        db_table = '"pgqueue"."queues"'
        default_permissions = ACTED_ON
        ordering = ("name",)

    def __str__(self) -> str:
        return printable.line(str(self.name))


class Stats(View):
    """The number of tasks of a queue in each state: exact, at the same cost with any backlog."""

    queue = models.OneToOneField(
        Queue, models.DO_NOTHING, primary_key=True, db_column="queue", db_constraint=False, related_name="stats"
    )
    total = models.BigIntegerField()
    ready = models.BigIntegerField()
    delayed = models.BigIntegerField()
    taken = models.BigIntegerField()
    buried = models.BigIntegerField()
    blocked = models.BigIntegerField()
    done = models.BigIntegerField()
    kept = models.BigIntegerField()
    oldest_ready_age = models.DurationField(null=True)

    class Meta:
        managed = False
        db_table = '"pgqueue"."stats"'
        default_permissions = ()
        verbose_name_plural = "stats"

    def __str__(self) -> str:
        return printable.line(f"{self.pk}: {self.total}")


class Rates(View):
    """The rates of a queue's changes a second, over about the last minute; NULL while no client runs."""

    queue = models.OneToOneField(
        Queue, models.DO_NOTHING, primary_key=True, db_column="queue", db_constraint=False, related_name="rates"
    )
    puts = models.FloatField(null=True)
    takes = models.FloatField(null=True)
    acks = models.FloatField(null=True)
    done = models.FloatField(null=True)
    growth = models.FloatField(null=True)
    drained_in = models.DurationField(null=True)

    class Meta:
        managed = False
        db_table = '"pgqueue"."rates"'
        default_permissions = ()
        verbose_name_plural = "rates"

    def __str__(self) -> str:
        return printable.line(f"{self.pk}: {self.growth} a second")


class Task(View):
    """A task in any state, until it is acked or deleted."""

    id = models.BigIntegerField(primary_key=True)
    queue = models.TextField()
    state = models.TextField()
    priority = models.IntegerField()
    attempts = models.IntegerField()
    created_at = models.DateTimeField()
    run_at = models.DateTimeField(null=True)
    ready_since = models.DateTimeField(null=True)
    expires_at = models.DateTimeField(null=True)
    ttr = models.DurationField("time to run", null=True)
    error = models.TextField(null=True)
    data = Json()
    taken_at = models.DateTimeField(null=True)
    deadline = models.DateTimeField(null=True)
    session = models.IntegerField(null=True)
    holder = models.TextField(null=True)
    routing_key = models.TextField(null=True)
    deaths = Json(null=True)
    lane = models.TextField(null=True)
    key = models.TextField(null=True)
    buried_at = models.DateTimeField(null=True)
    done_at = models.DateTimeField(null=True)
    stored = models.TextField("stored as")
    releases = models.IntegerField()
    timeouts = models.IntegerField()
    buries = models.IntegerField()
    kicks = models.IntegerField()

    class Meta:
        managed = False
        db_table = '"pgqueue"."tasks"'
        default_permissions = ACTED_ON

    def __str__(self) -> str:
        return printable.line(f"{self.id} ({self.queue})")


class Result(View):
    """The kept result of a task."""

    id = models.BigIntegerField(primary_key=True)
    queue = models.TextField(null=True)
    state = models.TextField()
    attempts = models.IntegerField()
    result = Json(null=True)
    error = models.TextField(null=True)
    finished_at = models.DateTimeField()
    expires_at = models.DateTimeField()

    class Meta:
        managed = False
        db_table = '"pgqueue"."results"'
        default_permissions = ("view",)

    def __str__(self) -> str:
        return printable.line(f"{self.id}: {self.state}")


class Schedule(View):
    """A schedule, with its next and its last occurrence."""

    name = models.TextField(primary_key=True)
    queue = models.TextField()
    cron = models.TextField(null=True)
    every = models.DurationField(null=True)
    tz = models.TextField("time zone")
    missed = models.TextField()
    data = Json(null=True)
    options = Json(null=True)
    paused = models.BooleanField()
    declared = models.TextField(null=True)
    removed_at = models.DateTimeField(null=True)
    role = models.TextField()
    created_at = models.DateTimeField()
    next_at = models.DateTimeField(null=True)
    last_at = models.DateTimeField(null=True)
    last_task = models.BigIntegerField(null=True)
    last_state = models.TextField(null=True)
    last_error = models.TextField(null=True)
    last_result = Json(null=True)
    error = models.TextField(null=True)

    class Meta:
        managed = False
        db_table = '"pgqueue"."schedules"'
        default_permissions = ACTED_ON

    def __str__(self) -> str:
        return printable.line(str(self.name))


class Take(View):
    """A task that is taken, and its holder. `id` is the task's id."""

    id = models.BigIntegerField("task", primary_key=True)
    queue = models.TextField()
    holder = models.TextField()
    host = models.TextField(null=True)
    pid = models.IntegerField(null=True)
    session = models.IntegerField()
    taken_at = models.DateTimeField()
    age = models.DurationField()
    deadline = models.DateTimeField(null=True)
    time_left = models.DurationField(null=True)
    lane = models.TextField(null=True)

    class Meta:
        managed = False
        db_table = '"pgqueue"."takes"'
        default_permissions = ("view", "change")

    def __str__(self) -> str:
        return printable.line(f"{self.id} ({self.queue}), held by {self.holder}")


class Session(View):
    """A process that takes."""

    id = models.IntegerField(primary_key=True)
    label = models.TextField()
    host = models.TextField(null=True)
    pid = models.IntegerField(null=True)
    backend_pid = models.IntegerField("backend's pid")
    state = models.TextField()
    started_at = models.DateTimeField()
    age = models.DurationField()
    grace = models.DurationField()
    missing_since = models.DateTimeField(null=True)
    taken = models.BigIntegerField()
    longest_take = models.DurationField(null=True)

    class Meta:
        managed = False
        db_table = '"pgqueue"."sessions"'
        default_permissions = ("view",)

    def __str__(self) -> str:
        return printable.line(str(self.label))


class Lock(View):
    """A lock that is held."""

    fence = models.BigIntegerField(primary_key=True)
    name = models.TextField()
    mode = models.TextField()
    holder = models.TextField()
    session = models.IntegerField()
    locked_at = models.DateTimeField()
    waiters = models.BigIntegerField()

    class Meta:
        managed = False
        db_table = '"pgqueue"."locks"'
        default_permissions = ("view",)

    def __str__(self) -> str:
        return printable.line(str(self.name))


class Health(View):
    """A check of the database. `status` is ok, warn or bad."""

    name = models.TextField(primary_key=True)
    status = models.TextField()
    value = models.FloatField()
    unit = models.TextField()
    detail = models.TextField()

    class Meta:
        managed = False
        db_table = '"pgqueue"."health"'
        default_permissions = ("view",)
        verbose_name = "health check"

    def __str__(self) -> str:
        return printable.line(f"{self.name}: {self.status}")
