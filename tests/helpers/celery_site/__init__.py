"""A Django project with Celery, as Celery's own guide has it. `python -m celery_site PATH ...` requests these paths."""

from .celery import app as celery_app

__all__ = ["celery_app"]
