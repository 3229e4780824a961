"""A result backend for Celery: `result_backend = "pgqueue://user:password@host:port/database"`.

Theory of operation
-------------------
The result of a task is a status by key (client.statuses): {"state": "SUCCESS", "text": "..."}. The text is the
unchanged output of the serializer, which may be bytes. A value of jsonb would not be the same, for example 1e16 would
become an integer, and NaN cannot be one.

A waiting client listens for the keys of its tasks (waiting.py), so nothing polls. A status expires by its ttl.

A chord with N members has a status for its size, one for each member that has ended (a part), and at last one for its
claim. Each member, when it ends, does in transactions of its own:

    T1  set the part of this member, with its result if that is kept
    T2  count the parts; if all are there:
    T3  set the claim, if it is absent; the member that set it publishes the body

- Some member publishes: of all T1, one commits last, and the T2 behind it has a newer snapshot than each of them.
- One member publishes: two members may both count N parts, since each T2 is later than its T1. One T3 sets the claim.
- A member that runs twice, because its first worker died, sets its part again, and the count does not change.
- A member that dies between T3 and its publish runs again, where acks are late. The claim holds its name, so that run
  may publish. After the publish the claim says `done`, and later runs of any member end there.
- A member that is added by a running one (Task.add_to_chord) has a status as well, and is counted in addition to the
  size.

No member waits for a lock of another one. A counter in one row would have made the members of a chord commit in turn.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import psycopg
from celery import states
from celery.backends.base import BaseKeyValueStoreBackend
from celery.canvas import maybe_signature
from celery.exceptions import ChordError
from celery.result import GroupResult, allow_join_result
from celery.utils.functional import _regen
from celery.utils.log import get_logger
from kombu.exceptions import EncodeError
from kombu.utils.encoding import bytes_to_str
from kombu.utils.functional import retry_over_time

from ... import BadData, Client, errors
from ..._calls.call import Call
from ..._calls.session import clean_up
from . import statements, urls
from .clients import CLIENTS
from .transport import Transport
from .waiting import Meta, Waiting

logger = get_logger(__name__)

MAX_KEY, MAX_NAME = 200, 100  # characters of a status key; of that of a task or a group, which its members' keys extend
CLEANINGS = 20  # each removes up to 5,000 expired statuses
SHARE_OF_CLEANING = 0.001  # of the stored results, so that expired ones are removed faster than new ones are stored
CUT = 2000  # characters of a traceback that was too large

#: Behind the key of the group, in the order of the keys. The first and the third are of each member.
CHORD_KEYS = (".added:", ".claim", ".part:", ".size")

#: After these a call is repeated. Storing twice is as good as storing once.
REPEATED = (*errors.CONNECTION_ERRORS, psycopg.OperationalError)


class PgqueueBackend(Waiting, BaseKeyValueStoreBackend):
    """Results of Celery's tasks, as statuses by key in PostgreSQL.

    Args:
        url: see urls.py. The options can also be in `result_backend_transport_options`, with `retry_policy` and
            `global_keyprefix` as for Celery's own backends.

    Attributes:
        client: the pgqueue client of this process, shared by all backends with the same URL.
    """

    key_t = staticmethod(bytes_to_str)
    supports_native_join = True
    supports_result_compression = True
    supports_failure_expires = True
    #: An expired result is absent from that moment on. Its row is deleted when a listener cleans. Where no process
    #: waits, there is no listener: one in a thousand stores cleans, and so does Celery's daily backend_cleanup.
    supports_autoexpire = False
    retry_policy: Mapping[str, Any] = {**BaseKeyValueStoreBackend.retry_policy, "timeout": 30.0}  # of all attempts, s

    def __init__(self, app: Any, url: str | None = None, **kwargs: Any) -> None:
        super().__init__(app=app, url=url, **kwargs)
        options = app.conf.get("result_backend_transport_options") or {}
        self.client: Client = CLIENTS.borrow(url or "pgqueue://", options)  # for as long as the process lives
        self.retry_policy = {**self.retry_policy, **options.get("retry_policy", {})}
        self.thread_safe = True  # one backend of the app for all threads
        self.persistent = self.prepare_persistent()
        expires = app.conf.get("result_failure_expires")
        self._failure_expires = self.expires if expires is None else self.prepare_expires(expires)

    def as_uri(self, include_password: bool = False) -> str:
        return (self.url or "pgqueue://") if include_password else urls.shown(self.url or "pgqueue://")

    def __reduce__(self, args: Any = (), kwargs: Any = None) -> Any:
        return super().__reduce__(args, {**(kwargs or {}), "url": self.url})

    def exception_safe_to_retry(self, exc: BaseException) -> bool:
        return isinstance(exc, REPEATED)

    def cleanup(self) -> None:
        """Remove expired results now, up to 100,000. Listeners do it every ten seconds."""
        for _ in range(CLEANINGS):
            self._run(clean_up())

    # --- for BaseKeyValueStoreBackend

    def get(self, key: str) -> Any:
        return _payload(self._ensured(self.client.statuses.get, key))

    def mget(self, keys: list[str]) -> list[Any]:
        found = self._ensured(self.client.statuses.get_many, keys)
        return [_payload(found.get(key)) for key in keys]

    def set(self, key: str, value: Any) -> None:
        self._set(key, _status(value), self.expires)

    def delete(self, key: str) -> None:
        self._ensured(self.client.statuses.delete, key)

    def expire(self, key: str, value: float | None) -> None:
        self._run(statements.expire(key, value or None))

    def meta_of(self, status: Any) -> Meta:
        """The meta data in a status."""
        meta: Meta = self.decode_result(_payload(status))
        return meta

    def _get_key_for(self, prefix: str, id: Any, key: str = "") -> str:
        whole: str = super()._get_key_for(prefix, id, key)
        return whole if len(whole) <= MAX_NAME else f"{prefix}{_digest(str(id))}{key}"

    def _store_result(
        self,
        task_id: str,
        result: Any,
        state: str,
        traceback: Any = None,
        request: Any = None,
        with_part: bool = False,
        **kwargs: Any,
    ) -> Any:
        meta = self._get_result_meta(result=result, state=state, traceback=traceback, request=request)
        meta["task_id"] = bytes_to_str(task_id)
        ttl = self._failure_expires if state == states.FAILURE else self.expires
        key, lost = self.get_key_for_task(task_id), not (self.persistent or with_part)
        try:
            part = self._part(request, state, result) if with_part else None
            self._store(key, meta, ttl, part, relaxed=lost or self._runs_again(state, request))
        except EncodeError as error:
            if state not in states.EXCEPTION_STATES:
                raise  # and the task has failed, with this error as its result
            meta["result"] = self.prepare_exception(error)
            meta["traceback"] = (traceback or "")[-CUT:]
            self._store(key, {**meta, "children": []}, ttl)
        return result

    def _runs_again(self, state: str, request: Any) -> bool:
        """Whether the task runs again if a crash of the server loses its result: the commit need not wait for the disk.

        With late acks the ack commits after the result, in the same database, so a crash that loses the result loses
        the ack too. An ack that the worker sends after the crash is refused: a crash empties the table of takes
        (1_tables/tasks.sql). The part of a member of a chord is set again with its result.

        Some failures are stored by the parent process, after its ack. So this holds for a success only, and not for a
        task that was applied eagerly, which has no message.

        Nor need other results wait with `result_persistent = False`, but a part does: without it the chord never ends.
        """
        if state != states.SUCCESS or request is None or request.is_eager or not self._has_the_broker:
            return False
        task = self.app.tasks.get(request.task)
        return task is not None and bool(task.acks_late)

    @cached_property
    def _has_the_broker(self) -> bool:
        """Whether the tasks are in the database of the results, as far as the URLs show."""
        broker = self.app.connection_for_read()
        if broker.alt or not issubclass(broker.get_transport_cls(), Transport):
            return False
        address, _ = urls.read(urls.of_connection(broker), {})
        return address == urls.read(self.url or "pgqueue://", {})[0]

    def _store(
        self, key: str, meta: Meta, ttl: float | None, part: statements.Set | None = None, *, relaxed: bool = False
    ) -> None:
        result = statements.Set(
            key, self._encoded({"state": meta["status"], **_status(self.encode(meta))}), ttl or None
        )
        try:
            self._ensured(self.client.shell.run, statements.store(result, part), relaxed=relaxed)
        except errors.DataTooBig as error:
            raise EncodeError(f"the result is too large: {error}") from error
        if random.random() < SHARE_OF_CLEANING:
            self._clean()

    def _clean(self) -> None:
        try:
            self.client.shell.run(clean_up())
        except (errors.Error, psycopg.Error) as error:  # the result is stored: its task has not failed
            logger.warning("pgqueue result backend: expired results were not removed: %s", error)

    def _set(self, key: str, status: Any, ttl: float | None, **options: Any) -> bool:
        with _refusal():
            return bool(self._ensured(self.client.statuses.set, key, status, ttl=ttl or None, **options))

    def _encoded(self, status: Any) -> str:
        with _refusal():
            return self.client.shell.encode(status)

    # --- chords; the head of this module has the proof

    def set_chord_size(self, group_id: str, chord_size: int) -> None:
        self.delete(self.get_key_for_group(group_id, ".claim"))  # of an earlier run of the same frozen chord
        self._set(self.get_key_for_group(group_id, ".size"), chord_size, self._chord_ttl)

    def add_to_chord(self, group_id: str, result: Any) -> None:
        self._set(self._member_key(group_id, ".added:", result.id), True, self._chord_ttl)

    def apply_chord(self, header_result_args: Any, body: Any, **kwargs: Any) -> None:
        """Keep the structure of a header with groups in it: its results would be returned flattened."""
        if isinstance(header_result_args[1], _regen):
            return  # not yet evaluated, so it has no groups
        header = self.app.GroupResult(*header_result_args)
        if any(isinstance(result, GroupResult) for result in header.results):
            status = _status(self.encode({"result": header.as_tuple()}))
            self._set(self.get_key_for_group(header.id), status, self._chord_ttl)

    def mark_as_done(
        self, task_id: str, result: Any, request: Any = None, store_result: bool = True, state: str = states.SUCCESS
    ) -> None:
        """As Celery's, but a member of a chord stores its result and its part in one transaction.

        Not so for every result that a member stores: update_state() of a task that still runs stores no part.
        """
        if store_result and request and request.chord and _is_member(request) and not request.ignore_result:
            self.store_result(task_id, result, state, request=request, with_part=True)
            self._end_if_last(request)
        else:
            super().mark_as_done(task_id, result, request, store_result, state)

    def on_chord_part_return(self, request: Any, state: str, result: Any, **kwargs: Any) -> None:
        if not _is_member(request):
            return
        try:
            part = self._part(request, state, result)
        except EncodeError as error:
            if state not in states.EXCEPTION_STATES:
                raise
            part = self._part(request, state, error)
        self._run(statements.set_status(part))
        self._end_if_last(request)

    def _part(self, request: Any, state: str, result: Any) -> statements.Set:
        payload = self.encode([request.id, state, self.encode_result(result, state)])
        value = self._encoded({"index": request.group_index, **_status(payload)})
        return statements.Set(self._member_key(request.group, ".part:", _member(request)), value, self._chord_ttl)

    def _end_if_last(self, request: Any) -> None:
        """T2 of a member whose part is set, and if all are there, T3 and the publish."""
        chord = self._run(statements.chord(*(self.get_key_for_group(request.group, end) for end in CHORD_KEYS)))
        if chord.claim is not None and chord.claim["done"]:
            self.delete(self._member_key(request.group, ".part:", _member(request)))  # this run was too late
        elif chord.is_complete and self._claims(request.group, _member(request), chord.claim):
            self._end_chord(request.group, _member(request), request)

    @property
    def _chord_ttl(self) -> float | None:
        return getattr(self, "chord_expires", self.expires) or None

    def _member_key(self, group_id: str, kind: str, member: str) -> str:
        prefix: str = self.get_key_for_group(group_id, kind)
        return prefix + (member if len(prefix) + len(member) <= MAX_KEY else _digest(member))

    def _claims(self, group_id: str, member: str, claim: Mapping[str, Any] | None) -> bool:
        """Whether this member is the one that publishes the body."""
        if claim is None:
            mine, key = {"member": member, "done": False}, self.get_key_for_group(group_id, ".claim")
            if self._set(key, mine, self._chord_ttl, if_absent=True):
                return True
            claim = self._ensured(self.client.statuses.get, key)
        return claim is not None and claim["member"] == member and not claim["done"]

    def _end_chord(self, group_id: str, member: str, request: Any) -> None:
        body = maybe_signature(request.chord, app=self.app)
        try:
            self._publish(body, self._header_results(group_id))
        except Exception as error:
            logger.exception("Chord %r raised: %r", group_id, error)
            failure = error if isinstance(error, ChordError) else ChordError(f"Join error: {error!r}")
            self.chord_error_from_stack(body, failure)
        self._set(self.get_key_for_group(group_id, ".claim"), {"member": member, "done": True}, self._chord_ttl)
        self.delete(self.get_key_for_group(group_id, ".size"))
        for kind in (".added:", ".part:"):
            self._run(statements.delete_all(self.get_key_for_group(group_id, kind)))

    def _publish(self, body: Any, results: list[Any]) -> None:
        publish = getattr(self.app.amqp, "_retry_publish", _called)  # Celery 5.7 has it, and waits between its attempts
        try:
            publish(body.delay, results)
        except Exception as error:
            raise ChordError(f"Callback error: {error!r}") from error

    def _header_results(self, group_id: str) -> list[Any]:
        """The results of the header in order. Raises ChordError with the error of a member that failed."""
        header = GroupResult.restore(group_id, backend=self, app=self.app)
        if header is not None:  # it has groups in it
            header.on_ready()
            with allow_join_result():
                joined: list[Any] = header.join_native(timeout=self.app.conf.result_chord_join_timeout, propagate=True)
            return joined
        parts = self._run(statements.values(self.get_key_for_group(group_id, ".part:")))
        parts.sort(key=lambda part: float("inf") if part["index"] is None else part["index"])
        return [self._part_result(*self.decode(_payload(part))) for part in parts]

    def _part_result(self, task_id: str, state: str, result: Any) -> Any:
        value = self.exception_to_python(result) if state in states.EXCEPTION_STATES else result
        if state in states.PROPAGATE_STATES:
            error = ChordError(f"Dependency {task_id} raised {value!r}")
            error.__cause__ = value if isinstance(value, BaseException) else None
            raise error
        return value

    # --- calls

    def _run(self, call: Call[Any]) -> Any:
        return self._ensured(self.client.shell.run, call)

    def _ensured(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a function, again while the server is away, as `retry_policy` says."""
        return retry_over_time(function, REPEATED, args, kwargs, self._on_lost, **self.retry_policy)

    def _on_lost(self, error: Exception, intervals: Any, retries: int) -> float:
        pause: float = next(intervals)
        logger.warning("pgqueue result backend: %s; retry %s in %s s", error, retries, pause)
        return pause


def _is_member(request: Any) -> bool:
    return bool(request.id and request.group)


def _member(request: Any) -> str:
    """The name of a member of a chord: a task may be a member twice."""
    return f"{request.id}:{'' if request.group_index is None else request.group_index}"


@contextmanager
def _refusal() -> Iterator[None]:
    """Raise Celery's error for a result that cannot be stored."""
    try:
        yield
    except BadData as error:
        raise EncodeError(f"the result is too large, or PostgreSQL cannot hold it: {error.reason}") from error


def _status(payload: str | bytes) -> dict[str, str | bytes]:
    """The unchanged output of a serializer as a status."""
    return {"text": payload}


def _payload(status: Any) -> Any:
    """The output of the serializer again; None for no status."""
    return None if status is None else status["text"]


def _digest(text: str) -> str:
    return "sha256:" + hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _called(function: Callable[..., Any], *args: Any) -> Any:
    return function(*args)
