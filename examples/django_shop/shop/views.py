"""The shop's pages, in JSON."""

from django.http import HttpRequest, JsonResponse
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST

from pgqueue.contrib.django import queue

from .models import Order


class CardDeclined(Exception):
    """The bank declined the card."""


@csrf_exempt  # so that curl can order
@require_POST
def order(request: HttpRequest) -> JsonResponse:
    """The order and its task are part of this request's transaction: an exception rolls both back."""
    made = Order.objects.create(item=request.POST["item"])
    queue("mail").put({"order": made.pk})
    if request.POST.get("card") == "declined":
        raise CardDeclined
    return JsonResponse({"order": made.pk}, status=201)


def status(request: HttpRequest) -> JsonResponse:
    orders = [
        {
            "order": order.pk,
            "item": order.item,
            "mailed": order.mailed_at is not None,
            "packed": order.packed_at is not None,
        }
        for order in Order.objects.order_by("pk")
    ]
    waiting = {"to be mailed": queue("mail").stats()["total"], "to be packed": queue("parcels").stats()["total"]}
    return JsonResponse({"shop": "Tea and more", "orders": orders, **waiting})
