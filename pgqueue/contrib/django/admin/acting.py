"""How an action of the admin is carried out: on which rows, in one transaction, logged, and told.

An action is one call of the library's for each row, on Django's own connection. What the library refuses, as a task
that somebody has taken, is told and does not keep the others; what fails rolls all of it back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from django.contrib import messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.admin.utils import quote
from django.db import DatabaseError, connections, transaction
from django.db.models import QuerySet
from django.forms import Form
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse

from pgqueue._engine import borrowed
from pgqueue.errors import Error, TaskError, TaskTakenByOther

from ...._calls.call import Call
from .base import Page
from .paging import MOST

TOLD = 10  # refusals that are told one by one

Run = Callable[[Call[Any]], Any]
Act = Callable[[Run, Any], str | None]  # a sentence, where "Kicked: 3 tasks" would not tell all


class ActingPage(Page):
    """A page with actions: in its list, and as buttons on the page of each row."""

    def fits(self, action: str, row: Any) -> bool:
        """Whether the page of a row offers an action that the user may do: not if it is sure to be refused."""
        return True

    def render_change_form(
        self,
        request: HttpRequest,
        context: dict[str, Any],
        add: bool = False,
        change: bool = False,
        form_url: str = "",
        obj: Any = None,
    ) -> HttpResponse:
        names = [name for name in self.get_actions(request) if self.fits(name, obj)]
        context |= {
            "buttons": [(name, getattr(self, name).short_description) for name in names],
            "list_url": self.url("changelist"),
            "checkbox": ACTION_CHECKBOX_NAME,
        }
        return super().render_change_form(request, context, add, change, form_url, obj)

    def chosen(self, request: HttpRequest, queryset: QuerySet[Any]) -> list[Any]:
        """The rows that an action is for; with "select all" those that the list shows.

        What was ticked is looked up without the list's filters: of a row that changed since something is told.
        """
        if _all(request):
            return list(queryset[:MOST])
        return list(self.get_queryset(request).defer(*self.deferred).filter(pk__in=_ticked(request)))

    def confirm(
        self, request: HttpRequest, rows: Sequence[Any], action: str, warning: str, form: Form | None = None
    ) -> HttpResponse:
        """A page that asks first. It posts the action again for these rows, with `confirmed` and what its form has."""
        context = {
            **self.admin_site.each_context(request),
            "media": self.media,
            "opts": self.opts,
            "title": getattr(self, action).short_description.rstrip("…"),
            "rows": rows,
            "action": action,
            "warning": warning,
            "form": form,
            "checkbox": ACTION_CHECKBOX_NAME,
            "from_page": "from_page" in request.POST,
        }
        return TemplateResponse(request, "admin/pgqueue/confirm.html", context)

    def carry_out(
        self, request: HttpRequest, rows: Sequence[Any], act: Act, done: str, flag: int = CHANGE
    ) -> HttpResponse | None:
        """Do something to each row.

        Args:
            request: the POST.
            rows: what to do it to.
            act: does it to one, and raises TaskError to refuse.
            done: what it did, for the message and the log: "Buried".
            flag: the kind of the log's entries.

        Returns:
            The way back to the page of the row, if it came from there and the row still is; else None, for the list.
        """
        run = partial(borrowed.run, connections[self.alias()])
        there = {str(row.pk) for row in rows}
        refused = [] if _all(request) else [f"{pk} is gone" for pk in _ticked(request) if pk not in there]
        served, said = [], []
        try:
            with transaction.atomic(using=self.alias()):
                for row in rows:
                    try:
                        said.append(act(run, row))
                        served.append(row)
                    except TaskTakenByOther as error:
                        refused.append(f"task {error.task_id} is taken by {error.holder}")
                    except TaskError as error:
                        refused.append(str(error))
                # Its stubs want a queryset, and it only goes through the rows.
                LogEntry.objects.log_actions(request.user.pk, served, flag, f"{done}.")  # type: ignore[arg-type]
        except (Error, DatabaseError, ValueError) as error:
            reason = str(error).partition("\n")[0]  # PostgreSQL adds where in its functions
            self.message_user(request, f"Nothing was changed: {reason}", messages.ERROR)
        else:
            self._tell(request, done, said, refused)
        return self._back(request)

    def _tell(self, request: HttpRequest, done: str, said: Sequence[str | None], refused: Sequence[str]) -> None:
        asked = len(said) + len(refused)
        count = f"{len(said)} of {asked}" if refused else str(asked)
        name = self.opts.verbose_name if asked == 1 else self.opts.verbose_name_plural
        told = list(filter(None, said)) or [f"{done}: {count} {name}."]
        for sentence in told:
            self.message_user(request, sentence, messages.SUCCESS if said else messages.WARNING)
        for reason in refused[:TOLD]:
            self.message_user(request, f"Refused: {reason}.", messages.WARNING)
        if more := len(refused[TOLD:]):
            self.message_user(request, f"Refused: {more} more.", messages.WARNING)

    def _back(self, request: HttpRequest) -> HttpResponse | None:
        row = (
            self.get_queryset(request).filter(pk__in=_ticked(request)).first() if "from_page" in request.POST else None
        )
        return HttpResponseRedirect(self.url("change", quote(row.pk))) if row else None


def _ticked(request: HttpRequest) -> list[str]:
    return request.POST.getlist(ACTION_CHECKBOX_NAME)


def _all(request: HttpRequest) -> bool:
    return request.POST.get("select_across") == "1"
