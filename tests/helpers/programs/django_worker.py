"""The worker of a Django project whose database is at the DSN given: `manage.py pgqueue worker`."""

import os
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

import django
import django_settings
from psycopg.conninfo import conninfo_to_dict

known = conninfo_to_dict(sys.argv[1])
database: dict[str, Any] = {"ENGINE": "django.db.backends.postgresql", "NAME": known.pop("dbname"), "OPTIONS": known}
django_settings.DATABASES["default"] = database
django_settings.TASKS = {"default": {"BACKEND": "pgqueue.contrib.django.PgqueueBackend"}}  # type: ignore[attr-defined]
os.environ["DJANGO_SETTINGS_MODULE"] = "django_settings"
django.setup()

from django.core.management import call_command  # noqa: E402

call_command("pgqueue", "worker")
