"""The shop's page in the admin; pgqueue adds its own beside it: queues, tasks, takes, sessions and so on."""

from django.contrib import admin
from django.http import HttpRequest

from .models import Order


@admin.register(Order)
class OrderPage(admin.ModelAdmin):
    list_display = ("id", "item", "mailed_at", "packed_at")

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False  # an order is made in the shop, whose view puts its task
