"""A list that is as fast with millions of tasks as with ten: its first rows, by an index, and no count of the others.

Django's own counts all rows to number its pages, and goes to page n by walking over those before it. Nobody looks at
page 20,000, so a list ends after MOST rows, and its pages and "select all" are of these.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib.admin.views.main import ChangeList
from django.core.paginator import Paginator
from django.db.models import QuerySet
from django.db.models.expressions import Combinable
from django.http import HttpRequest

if TYPE_CHECKING:
    Pages = Paginator[Any]
else:
    Pages = Paginator  # which only its stubs know to be generic

MOST = 500  # rows; below DATA_UPLOAD_MAX_NUMBER_FIELDS, since all of them may be ticked


class FirstPages(Pages):
    """The pages of the first MOST rows."""

    def __init__(self, rows: QuerySet[Any], *args: Any, **kwargs: Any) -> None:
        super().__init__(rows[:MOST], *args, **kwargs)


class FirstRows(ChangeList):
    """The list of these, in the order of its page, whatever the address asks for."""

    def get_ordering(self, request: HttpRequest, queryset: QuerySet[Any]) -> list[str | Combinable]:
        return list(self.model_admin.get_ordering(request))

    def get_queryset(self, request: HttpRequest, exclude_parameters: Any = None) -> QuerySet[Any]:
        return super().get_queryset(request, exclude_parameters).defer(*getattr(self.model_admin, "deferred", ()))

    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        if not self.multi_page or (self.show_all and self.can_show_all):
            self.result_list = self.paginator.object_list  # with its limit, which tells the planner to use an index
