"""Actions of the admin: the chosen rows, one transaction, the log entries and the messages.

An action is one library call for each row, on Django's own connection. If the library refuses a row, for example a task
that is taken, the page shows a message and the other rows are done. An error rolls all of them back.
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
from ...._values import printable
from .base import Page
from .paging import MOST

TOLD = 10  # refusals that are shown one by one

Run = Callable[[Call[Any]], Any]
Act = Callable[[Run, Any], str | None]  # may return a sentence for the message, instead of "Kicked: 3 tasks"


class ActingPage(Page):
    """A page with actions: in its list, and as buttons on the page of each row."""

    def fits(self, action: str, row: Any) -> bool:
        """Whether the page of a row offers an action. False if it is sure to be refused."""
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
        """The rows of an action; with "select all" those that the list shows.

        Ticked rows are looked up without the list's filters, so that a row that has changed since gets a message.
        """
        if _all(request):
            return list(queryset[:MOST])
        return list(self.get_queryset(request).defer(*self.deferred).filter(pk__in=_ticked(request)))

    def confirm(
        self, request: HttpRequest, rows: Sequence[Any], action: str, warning: str, form: Form | None = None
    ) -> HttpResponse:
        """A page that asks first. It posts the action again for these rows, with `confirmed` and its form's values."""
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
        """Do the action for each row.

        Args:
            request: the POST.
            rows: the rows.
            act: does the action for one row; raises TaskError to refuse.
            done: the action in the message and the log, for example "Buried".
            flag: the kind of the log entries.

        Returns:
            A redirect to the row's page, if the action was sent from there and the row still exists; else None: the
            list.
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
                # The stubs require a queryset, but the method only iterates over the rows.
                LogEntry.objects.log_actions(request.user.pk, served, flag, f"{done}.")  # type: ignore[arg-type]  # see above
        except (Error, DatabaseError, ValueError) as error:
            reason = str(error).partition("\n")[0]  # PostgreSQL adds the context in its functions
            self.message_user(request, f"Nothing was changed: {reason}", messages.ERROR)
        else:
            self._tell(request, done, said, refused)
        return self._back(request)

    def message_user(self, request: HttpRequest, message: Any, *args: Any, **options: Any) -> None:
        """Messages have names and errors in their sentences."""
        super().message_user(request, printable.line(str(message)), *args, **options)

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
