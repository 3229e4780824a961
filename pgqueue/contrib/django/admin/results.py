"""The kept results of tasks that have ended."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.safestring import SafeString

from ..models import Result
from . import showing
from .base import Page


class ResultPage(Page):
    """The results, the newest tasks first."""

    list_display = ("id", "queue", "state", "attempts", "age", "last_error")
    search_fields = ("id",)
    search_help_text = "The id of a task."
    ordering = ("-id",)
    deferred = ("result",)
    fieldsets = ((None, {"fields": ("queue", "state", "attempts", "finished_at", "expires_at", "result_", "error_")}),)

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        term = search_term.strip()
        return queryset.filter(pk__in=showing.ids(term)) if term else queryset, False

    @admin.display(description="ended")
    def age(self, result: Result) -> str:
        return f"{showing.age(result.finished_at)} ago"

    @admin.display(description="error")
    def last_error(self, result: Result) -> str:
        return showing.last_line(result.error)

    @admin.display(description="result")
    def result_(self, result: Result) -> SafeString | str:
        return showing.pretty(result.result)

    @admin.display(description="error")
    def error_(self, result: Result) -> SafeString | str:
        return showing.block(result.error)
