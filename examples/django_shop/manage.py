"""A shop in Django: an order and the task to mail its confirmation are committed together, or neither is.

    python manage.py migrate                # in this folder; needs django
    python manage.py runserver
    python manage.py pgqueue worker         # in another terminal, or in several; --reload while you work on it
    curl --data 'item=tea' http://127.0.0.1:8000/orders
    curl --data 'item=tea&card=declined' http://127.0.0.1:8000/orders   # fails after the put: no order, no task
    curl http://127.0.0.1:8000/
    python manage.py test

PGQUEUE_DSN or DATABASE_URL names the database; without them it is the embedded server. Kill workers at any time:
another one finishes their tasks, and no mail is lost.
"""

import os
import sys

from django.core.management import execute_from_command_line

if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "shop.settings")
    execute_from_command_line(sys.argv)
