"""The shop's models."""

from django.db import models


class Order(models.Model):
    """An order, and the times when its confirmation was mailed and its parcel packed."""

    item = models.CharField(max_length=100)
    mailed_at = models.DateTimeField(null=True, editable=False)
    packed_at = models.DateTimeField(null=True, editable=False)

    def __str__(self) -> str:
        return f"order {self.pk}: {self.item}"
