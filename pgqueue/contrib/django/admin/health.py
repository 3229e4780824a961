"""Health: one row for each check, bad ones first."""

from __future__ import annotations

from django.contrib import admin
from django.db.models import Case, When

from ..models import Health
from .base import Page


class HealthPage(Page):
    """The checks. A tick is ok, a question mark a warning, a cross is bad."""

    list_display = ("name", "well", "value_", "detail")
    list_display_links = None
    ordering = (Case(When(status="bad", then=0), When(status="warn", then=1), default=2), "name")

    @admin.display(description="status", boolean=True)
    def well(self, check: Health) -> bool | None:
        return {"ok": True, "warn": None, "bad": False}[check.status]

    @admin.display(description="value")
    def value_(self, check: Health) -> str:
        return f"{check.value:,.3g} {check.unit}" if check.value < 1000 else f"{check.value:,.0f} {check.unit}"
