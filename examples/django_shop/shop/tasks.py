"""The shop's handler and its job; `manage.py pgqueue worker` finds them here."""

from typing import Any

from django.db import connection, transaction
from django.utils import timezone

import pgqueue
from pgqueue import Retry
from pgqueue.contrib.django import handler, job

from .models import Order


@handler("mail")
def confirm(data: dict[str, Any], task: pgqueue.Task) -> None:
    """Mail a confirmation. The order's mark, the ack and the next task are one commit: a crash leaves all or none."""
    with transaction.atomic():
        order = Order.objects.select_for_update().get(pk=data["order"])
        order.mailed_at = timezone.now()
        order.save()
        task.ack(conn=connection)
        pack.put(order.pk)
        print(f"mail for order {order.pk}: thank you for the {order.item}", flush=True)  # stands for a mail server


@job("parcels", retry=Retry(attempts=5, on=OSError), timeout=30)
def pack(order: int) -> None:
    """Pack an order: up to five attempts of 30 seconds each. A second run of the same order changes nothing."""
    if Order.objects.filter(pk=order, packed_at=None).update(packed_at=timezone.now()):
        print(f"order {order} is packed", flush=True)  # stands for the printer of labels in the warehouse
