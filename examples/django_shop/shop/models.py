"""What the shop knows."""

from django.db import models


class Order(models.Model):
    """What somebody ordered, and when its confirmation was mailed."""

    item = models.CharField(max_length=100)
    mailed_at = models.DateTimeField(null=True)
