"""The shop's handlers; `manage.py pgqueue worker` finds them here."""

from typing import Any

from django.db import connection, transaction
from django.utils import timezone

import pgqueue
from pgqueue.contrib.django import handler

from .models import Order


@handler("mail")
def confirm(data: dict[str, Any], task: pgqueue.Task) -> None:
    """Mail a confirmation. The order's mark and the ack are one transaction, so a crash leaves both or neither."""
    with transaction.atomic():
        order = Order.objects.select_for_update().get(pk=data["order"])
        order.mailed_at = timezone.now()
        order.save()
        task.ack(conn=connection)
        print(f"mail for order {order.pk}: thank you for the {order.item}", flush=True)  # stands for a mail server
