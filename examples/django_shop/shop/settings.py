"""Settings for development. Only DATABASES, PGQUEUE and the first of INSTALLED_APPS concern pgqueue."""

from pgqueue.contrib.django import database

DEBUG = True
SECRET_KEY = "of an example, and no secret"
ALLOWED_HOSTS = ["127.0.0.1", "localhost", "testserver"]
ROOT_URLCONF = "shop.urls"
WSGI_APPLICATION = "shop.wsgi.application"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
USE_TZ = True
TIME_ZONE = "UTC"
STATIC_URL = "static/"

INSTALLED_APPS = [
    "pgqueue.contrib.django",  # adds its pages to the admin below
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "shop",
]

#: PGQUEUE_DSN, else DATABASE_URL, else the embedded server. A request is a transaction.
DATABASES = {"default": database(ATOMIC_REQUESTS=True)}

PGQUEUE = {"default": {"pool_size": 4}}

# What Django's admin needs.
MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
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
