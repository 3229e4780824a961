# Generated from pgqueue/_async/find.py by tools/blocking.py: edit that file, not this one.

"""The tasks of a queue by state and a filter: page by page, and acting on all of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Unpack

from .._calls import find as calls
from .._calls import queue as queue_calls
from .._calls.find import Filter, FilterArguments, State, Verb
from .._records.task import TaskPage, from_found
from .._values import arguments
from .shell import Shell
from .task import Task

OnProgress = Callable[[int], object]


class Finding:
    """The verbs of a queue for all tasks that match a filter."""

    name: str
    _shell: Shell

    def tasks(
        self, state: State, *, limit: int = 100, marker: str | None = None, **which: Unpack[FilterArguments]
    ) -> TaskPage[Task]:
        """Return a page of the tasks in one state, without taking them.

        Ready, buried, waiting and cancelling tasks are sorted by priority and id, delayed ones by run_at, taken ones by
        the time of their take, done ones by the time of their ack, blocked ones by lane and priority. A page costs the
        same wherever it is. A filter reads the tasks that it leaves out, for at most a second: then the page has the
        tasks found so far, perhaps none, and a marker with which the search goes on.

        Args:
            state: `ready`, `delayed`, `taken`, `buried`, `blocked`, `waiting`, `cancelling`, or `done` (those that the
                queue keeps).
            limit: how many at most.
            marker: of the page before; None: the first page.
            job: only tasks of the job with this name; empty: only those of no job.
            error: only tasks with a last error that has this part, for example the name of the exception's class;
                empty: only those without an error.
            older: only tasks that were put at least this number of seconds (or a timedelta) ago.
            key: only the task with this key; of done tasks several may have it.
            lane: only tasks of this lane.
            contains: only tasks whose data contains this JSON value, in the sense of PostgreSQL's `@>`. For example
                {"args": {"to": "ada"}} finds tasks of jobs with this argument, whatever their other arguments are.

        Raises:
            ValueError: there is no such state, or another argument is not valid.
            NotAllowed: the role may not look into the queue.
        """
        n = arguments.count("limit", limit)
        page = self._shell.run(calls.page(self.name, calls.state(state), Filter.of(**which), n, marker))
        return TaskPage([from_found(Task, row, self._shell) for row in page.tasks], page.marker)

    def kick_all(
        self, state: State = "buried", *, on_progress: OnProgress | None = None, **which: Unpack[FilterArguments]
    ) -> int:
        """Make all buried or all delayed tasks ready that match the filter. Returns how many.

        It commits after each few thousand tasks: after an error, those that were kicked before stay kicked. A task that
        another transaction has locked is left out. The attempts of buried tasks count from 0 again.

        Args:
            state: `buried` or `delayed`.
            on_progress: called after each commit, with the number of tasks so far. Default: none.
            job, error, older, key, lane, contains: as for tasks().

        Raises:
            NoQueue: the queue does not exist.
            NotAllowed: the role may not manage the queue; or with a filter by more than the age not look into it.
        """
        return self._act("kick", state, Filter.of(**which), on_progress)

    def delete_all(
        self, state: State, *, on_progress: OnProgress | None = None, **which: Unpack[FilterArguments]
    ) -> int:
        """Remove all tasks in a state that match the filter, also taken ones. Returns how many. As kick_all()."""
        return self._act("delete", state, Filter.of(**which), on_progress)

    def cancel_all(
        self, state: State, *, on_progress: OnProgress | None = None, **which: Unpack[FilterArguments]
    ) -> int:
        """Cancel all tasks in a state that match the filter, as Client.cancel. Returns how many. As kick_all()."""
        return self._act("cancel", state, Filter.of(**which), on_progress)

    def put_again_all(
        self, state: State = "done", *, on_progress: OnProgress | None = None, **which: Unpack[FilterArguments]
    ) -> int:
        """Put all done or all buried tasks again that match the filter, as Client.put_again.

        Returns how many. Otherwise as kick_all().

        Raises:
            QueueFull: the queue has no room for the next few thousand.
            QueueDraining: the queue is draining.
        """
        return self._act("put_again", state, Filter.of(**which), on_progress)

    def release_all(self, *, on_progress: OnProgress | None = None, **which: Unpack[FilterArguments]) -> int:
        """Give back all taken tasks that match the filter, also those of other clients. Returns how many.

        Without a filter it is one transaction, and reports no progress; with one as kick_all().
        """
        chosen = Filter.of(**which)
        if chosen == Filter():
            return self._shell.run(queue_calls.release_all(self.name))
        return self._act("release", "taken", chosen, on_progress)

    def _act(self, verb: Verb, state: State, which: Filter, on_progress: OnProgress | None) -> int:
        total, marker = 0, None
        while True:
            acted = self._shell.run(calls.act(self.name, verb, calls.state(state), which, marker))
            total, marker = total + acted.n, acted.marker
            if on_progress is not None:
                on_progress(total)
            if marker is None:
                return total
