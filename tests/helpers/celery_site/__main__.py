import json
import os
import sys

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "celery_site.settings")
django.setup()

from django.test import Client  # noqa: E402

client = Client(raise_request_exception=False)
answers = [client.get(path) for path in sys.argv[1:]]
print(json.dumps([[answer.status_code, answer.content.decode()] for answer in answers]))
