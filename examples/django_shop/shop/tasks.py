"""What the shop does behind the scenes; `manage.py pgqueue worker` finds it here."""

from typing import Any

from django.db import connection, transaction
from django.utils import timezone

import pgqueue
from pgqueue.contrib.django import handler

from .models import Order


@handler("mail")
def confirm(data: dict[str, Any], task: pgqueue.Task) -> None:
    """The order's note and the ack are one transaction, so no worker that dies leaves one without the other."""
    with transaction.atomic():
        order = Order.objects.select_for_update().get(pk=data["order"])
        order.mailed_at = timezone.now()
        order.save()
        task.ack(conn=connection)
        print(f"mail for order {order.pk}: thank you for the {order.item}", flush=True)  # here would be a mail server
