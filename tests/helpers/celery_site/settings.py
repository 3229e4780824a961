"""CELERY_URL is that of broker and results, a Redis or pgqueue. Nothing else in the project depends on it."""

import os

from pgqueue.contrib.django import database

DATABASES = {"default": database(os.environ["PGQUEUE_DSN"], ATOMIC_REQUESTS=True)}
INSTALLED_APPS = ["celery_site"]
ROOT_URLCONF = "celery_site.urls"
SECRET_KEY = "of a test"
ALLOWED_HOSTS = ["testserver"]

CELERY_BROKER_URL = os.environ["CELERY_URL"]
CELERY_RESULT_BACKEND = os.environ["CELERY_URL"]
CELERY_BROKER_TRANSPORT_OPTIONS = {"connection": "celery_site.celery:connection"}  # Redis's transport ignores it
