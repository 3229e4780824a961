"""The settings of the Django that the tests run in their own process. The databases are pointed elsewhere per test."""

import django

DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
SECRET_KEY = "of the tests"
DEBUG = False
USE_TZ = True
ALLOWED_HOSTS = ["*"]
ROOT_URLCONF = "django_urls"
STATIC_URL = "static/"

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    *(["django_tasks"] if django.VERSION < (6,) else []),
    "pgqueue.contrib.django",
    "django_orders",
]
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]
NOWHERE = {"ENGINE": "django.db.backends.postgresql", "HOST": "/nonexistent", "NAME": "none", "CONN_MAX_AGE": None}
DATABASES = {"default": NOWHERE, "other": NOWHERE, "lite": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}
