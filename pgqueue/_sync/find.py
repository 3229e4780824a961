# Generated from pgqueue/_async/find.py by tools/blocking.py: edit that file, not this one.

"""The tasks of a queue by state, job, error and age: page by page, and acting on all of them."""

from __future__ import annotations

from collections.abc import Callable

from .._calls import find as calls
from .._calls import queue as queue_calls
from .._calls.find import Filter, State, Verb
from .._records.task import TaskPage, from_found
from .._values import arguments
from .._values.arguments import Seconds
from .shell import Shell
from .task import Task


class Finding:
    """The verbs of a queue for all tasks that a filter lets pass."""

    name: str
    _shell: Shell

    def tasks(
        self,
        state: State,
        *,
        job: str | None = None,
        error: str | None = None,
        older: Seconds | None = None,
        limit: int = 100,
        marker: str | None = None,
    ) -> TaskPage[Task]:
        """A page of the tasks in one state, without taking them.

        Ready, buried, waiting and cancelling tasks come by priority and id, delayed ones by run_at, taken ones by the
        time of their take, done ones by the time of their ack, blocked ones by lane and priority. A page costs the same
        wherever it is, except that a filter reads the tasks that it leaves out.

        Args:
            state: `ready`, `delayed`, `taken`, `buried`, `blocked`, `waiting`, `cancelling`, or `done` (those that the
                queue keeps).
            job: only tasks of the job with this name.
            error: only tasks with a last error that has this part, for example the name of the exception's class.
            older: only tasks that were put at least so many seconds (or a timedelta) ago.
            limit: how many at most.
            marker: of the page before; None: the first page.

        Raises:
            ValueError: there is no such state, or another argument is not valid.
            NotAllowed: the role may not look into the queue.
        """
        n = arguments.count("limit", limit)
        page = self._shell.run(calls.page(self.name, calls.state(state), Filter.of(job, error, older), n, marker))
        return TaskPage([from_found(Task, row, self._shell) for row in page.tasks], page.marker)

    def kick_all(
        self,
        state: State = "buried",
        *,
        job: str | None = None,
        error: str | None = None,
        older: Seconds | None = None,
        on_progress: Callable[[int], object] | None = None,
    ) -> int:
        """Make all buried tasks ready that the filter lets pass, or all delayed ones. Returns how many.

        It commits after each few thousand tasks: an error leaves those kicked that were kicked before. A task that
        another transaction has locked is left out. The attempts of buried tasks count from 0 again.

        Args:
            state: `buried` or `delayed`.
            job, error, older: as for tasks().
            on_progress: called after each commit, with the number of tasks so far. Default: none.

        Raises:
            NoQueue: the queue does not exist.
            NotAllowed: the role may not manage the queue; or with `job` or `error` not look into it.
        """
        return self._act("kick", state, Filter.of(job, error, older), on_progress)

    def delete_all(
        self,
        state: State,
        *,
        job: str | None = None,
        error: str | None = None,
        older: Seconds | None = None,
        on_progress: Callable[[int], object] | None = None,
    ) -> int:
        """Remove all tasks in a state that the filter lets pass, also taken ones. Returns how many. As kick_all()."""
        return self._act("delete", state, Filter.of(job, error, older), on_progress)

    def cancel_all(
        self,
        state: State,
        *,
        job: str | None = None,
        error: str | None = None,
        older: Seconds | None = None,
        on_progress: Callable[[int], object] | None = None,
    ) -> int:
        """Cancel all tasks in a state that the filter lets pass, as Client.cancel. Returns how many. As kick_all()."""
        return self._act("cancel", state, Filter.of(job, error, older), on_progress)

    def release_all(
        self,
        *,
        job: str | None = None,
        error: str | None = None,
        older: Seconds | None = None,
        on_progress: Callable[[int], object] | None = None,
    ) -> int:
        """Give back all taken tasks that the filter lets pass, also those of other clients. Returns how many.

        Without a filter it is one transaction, whose progress is not told; with one as kick_all().
        """
        which = Filter.of(job, error, older)
        if which == Filter():
            return self._shell.run(queue_calls.release_all(self.name))
        return self._act("release", "taken", which, on_progress)

    def _act(self, verb: Verb, state: State, which: Filter, on_progress: Callable[[int], object] | None) -> int:
        total, marker = 0, None
        while True:
            acted = self._shell.run(calls.act(self.name, verb, calls.state(state), which, marker))
            total, marker = total + acted.n, acted.marker
            if on_progress is not None:
                on_progress(total)
            if marker is None:
                return total
