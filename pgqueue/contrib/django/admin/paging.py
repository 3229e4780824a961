"""A list that is as fast with millions of tasks as with ten: its first rows, by an index, without a count of all.

Django's own list counts all rows to number its pages, and reaches page n by walking over the rows before it. A page
20,000 is of no use, so this list ends after MOST rows; its pages and "select all" cover these rows.
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
    Pages = Paginator  # generic only in its stubs

MOST = 500  # rows; below DATA_UPLOAD_MAX_NUMBER_FIELDS, since all of them may be ticked


class FirstPages(Pages):
    """The pages of the first MOST rows."""

    def __init__(self, rows: QuerySet[Any], *args: Any, **kwargs: Any) -> None:
        super().__init__(rows[:MOST], *args, **kwargs)


class FirstRows(ChangeList):
    """The list of these rows, in the order of its page; an order in the URL is ignored."""

    def get_ordering(self, request: HttpRequest, queryset: QuerySet[Any]) -> list[str | Combinable]:
        return list(self.model_admin.get_ordering(request))

    def get_queryset(self, request: HttpRequest, exclude_parameters: Any = None) -> QuerySet[Any]:
        return super().get_queryset(request, exclude_parameters).defer(*getattr(self.model_admin, "deferred", ()))

    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        if not self.multi_page or (self.show_all and self.can_show_all):
            self.result_list = self.paginator.object_list  # with a LIMIT, so that the planner uses an index
