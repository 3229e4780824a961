"""Settings for development. Only DATABASES, INSTALLED_APPS and PGQUEUE concern pgqueue."""

from pgqueue.contrib.django import database

DEBUG = True
SECRET_KEY = "of an example, and no secret"
ALLOWED_HOSTS = ["127.0.0.1", "localhost", "testserver"]
ROOT_URLCONF = "shop.urls"
WSGI_APPLICATION = "shop.wsgi.application"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
USE_TZ = True

INSTALLED_APPS = ["pgqueue.contrib.django", "shop"]

#: PGQUEUE_DSN, else DATABASE_URL, else the embedded server. A request is a transaction.
DATABASES = {"default": database(ATOMIC_REQUESTS=True)}

PGQUEUE = {"default": {"pool_size": 4}}
