"""The base of all pages: their database, their read-only lists, and the lookups that they allow.

Django checks a model's `change` and `delete` permissions before its own forms save or delete. These pages never do
that, so Django sees both as off. Here the permissions allow actions: `act` those that can be undone, `remove` those
that cannot.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.contrib.admin import ShowFacets
from django.contrib.auth import get_permission_codename
from django.db import router
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.utils.safestring import SafeString

from . import showing
from .paging import FirstPages, FirstRows

if TYPE_CHECKING:
    Admin = admin.ModelAdmin[Any]
else:
    Admin = admin.ModelAdmin  # generic only in its stubs


class Page(Admin):
    """A page that shows the rows of a view.

    Attributes:
        using: the alias of the database; None leaves it to the routers, and is `default` if there are none.
        conditions: the lookups that a URL may have, besides the search.
        deferred: columns that only the page of one row shows, for example large data.
    """

    using: str | None = None
    conditions: Sequence[str] = ()
    deferred: Sequence[str] = ()
    paginator = FirstPages
    list_per_page = 50
    show_full_result_count = False
    show_facets = ShowFacets.NEVER
    sortable_by = ()

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        return super().get_queryset(request).using(self.alias())

    def alias(self) -> str:
        """The alias of the database: the primary, since a standby lacks the unlogged tables of takes and sessions."""
        return self.using or router.db_for_write(self.model)

    # --- permissions

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return self._may(request, "view") or self._may(request, "change")

    def has_act_permission(self, request: HttpRequest) -> bool:
        """Whether the user may do actions that can be undone: the model's `change`."""
        return self._may(request, "change")

    def has_remove_permission(self, request: HttpRequest) -> bool:
        """Whether the user may remove tasks: the model's `delete`."""
        return self._may(request, "delete")

    def _may(self, request: HttpRequest, action: str) -> bool:
        user: Any = request.user
        return bool(user.has_perm(f"{self.opts.app_label}.{get_permission_codename(action, self.opts)}"))

    # --- showing

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[FirstRows]:
        return FirstRows

    def lookup_allowed(self, lookup: str, value: str, request: HttpRequest) -> bool:
        """Allow only lookups that an index serves: not, for example, ?error__contains=."""
        return lookup in self.conditions

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        context = {"title": str(self.opts.verbose_name_plural).capitalize(), "subtitle": self.subtitle(request)}
        return showing.printable_page(super().changelist_view(request, context | (extra_context or {})))

    def subtitle(self, request: HttpRequest) -> str:
        """A line below the title of the list."""
        return ""

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        context = {"title": str(self.opts.verbose_name).capitalize()}
        return showing.printable_page(
            super().change_view(request, object_id, form_url, context | (extra_context or {}))
        )

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        """The fieldsets without the fields that the row does not have."""
        sections = []
        for title, options in super().get_fieldsets(request, obj):
            values = {name: getattr(obj, str(name).rstrip("_"), "") for name in options["fields"]}
            if fields := [name for name, value in values.items() if value is not None and value is not False]:
                sections.append((title, {"fields": fields}))
        return sections

    def task_link(self, id: int) -> SafeString:
        return showing.link(self.url("change", id, model="task"), id)

    def url(self, page: str, *args: Any, model: str = "") -> str:
        """The URL of a list (`changelist`) or of one row (`change`), of this model or another one of pgqueue."""
        name = f"admin:{self.opts.app_label}_{model or self.opts.model_name}_{page}"
        return reverse(name, args=args, current_app=self.admin_site.name)
