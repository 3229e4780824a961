"""The shop's models."""

from django.db import models


class Order(models.Model):
    """An order, and the time when its confirmation was mailed."""

    item = models.CharField(max_length=100)
    mailed_at = models.DateTimeField(null=True)
