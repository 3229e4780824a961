import os

from celery import Celery
from django.db import connection as django_connection

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "celery_site.settings")
app = Celery("celery_site")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()


def connection():
    return django_connection if django_connection.in_atomic_block else None
