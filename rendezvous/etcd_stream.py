"""A stream of watches, and what each of them has shown so far."""

import queue
import threading
import time
from collections.abc import Callable
from itertools import groupby
from typing import Any

from easyscale.errors import StoreError, StoreUnreachable
from easyscale.rendezvous.etcd_connection import Connection, entry_of, etcdrpc, grpc, key_range
from easyscale.rendezvous.store import Entry, Range, View, bounds

_ANSWER_TIMEOUT_S = 2.0
_JOIN_TIMEOUT_S = 5.0
_DELETE = 1


class Ended(StoreError):
    """The server ended a watch in good order: list again at once, nothing is lost."""


class Followed:
    """A range as one stream shows it: what was listed, and each event folded into it since."""

    def __init__(
        self,
        range_: Range,
        header: Any,  # noqa: ANN401
        view: View,
        give: Callable[[View], None],
    ) -> None:
        self.range_ = range_
        self.header = header
        self._view = view
        self._give = give

    @classmethod
    def listed(
        cls, connection: Connection, range_: Range, give: Callable[[View], None]
    ) -> "Followed":
        request = etcdrpc.RangeRequest(**key_range(range_))
        answer = connection.call(connection.kv.Range, request, timeout_s=_ANSWER_TIMEOUT_S)
        view = View.of(answer.header.revision, {e.key: e for e in map(entry_of, answer.kvs)})
        give(view)
        return cls(range_, answer.header, view, give)

    def take(self, answer: Any) -> bool:  # noqa: ANN401
        """Deliver the range after each revision, never between two events of one."""
        check(answer, self.header)
        self.header = answer.header
        for revision, events in groupby(answer.events, key=lambda event: event.kv.mod_revision):
            self._view = self._view.after(revision, dict(map(_change, events)))
            self._give(self._view)
        return bool(answer.events)


def _change(event: Any) -> tuple[str, Entry | None]:  # noqa: ANN401
    entry = entry_of(event.kv)
    return entry.key, None if event.type == _DELETE else entry


def check(answer: Any, header: Any) -> None:  # noqa: ANN401
    """Notice a store that is not the one that was listed: emptied, or another cluster."""
    same = answer.header.cluster_id == header.cluster_id
    if not same or answer.header.revision < header.revision:
        raise Ended("the store is another one than before")
    if getattr(answer, "canceled", False):
        raise Ended(f"etcd ended the watch: {answer.cancel_reason or 'compacted'}")


class WatchStream:
    """Its answers can be waited for with a deadline; `wake` ends such a wait from elsewhere."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._token = connection.token.current(connection, timeout_s=_ANSWER_TIMEOUT_S)
        #: By the numbers that etcd gives them, in the order in which they began.
        self._followed: dict[int, Followed] = {}
        self._answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._requests: queue.SimpleQueue[Any] = queue.SimpleQueue()
        # The requests never end before the stream: that might be taken for the end of a watch.
        requests = iter(self._requests.get, None)
        self._call = connection.open_stream(connection.watch.Watch, requests, self._token)
        self._reader = threading.Thread(target=self._read, name="read watches", daemon=True)
        self._reader.start()

    def begin(self, one: Followed) -> None:
        """Watch from behind the list; returns when etcd has begun it."""
        create = etcdrpc.WatchCreateRequest(
            start_revision=one.header.revision + 1, **key_range(one.range_)
        )
        self._requests.put(etcdrpc.WatchRequest(create_request=create))
        deadline = time.monotonic() + _ANSWER_TIMEOUT_S
        while (left_s := deadline - time.monotonic()) > 0:
            answer = self._next(left_s)
            if answer is None:
                continue
            if answer.created:
                check(answer, one.header)
                self._followed[answer.watch_id] = one
                return
            self._dispatch(answer)
        raise StoreUnreachable(f"etcd at {self._connection.endpoint} does not begin a watch")

    def end(self, one: Followed) -> None:
        """Let go of a watch; what etcd still says of it is not heard."""
        numbers = [number for number, known in self._followed.items() if known is one]
        for number in numbers:
            del self._followed[number]
            cancel = etcdrpc.WatchCancelRequest(watch_id=number)
            self._requests.put(etcdrpc.WatchRequest(cancel_request=cancel))

    def take(self, timeout_s: float) -> bool:
        """Deliver the next answer; False after a silence, or when somebody called `wake`."""
        answer = self._next(timeout_s)
        return answer is not None and self._dispatch(answer)

    def _dispatch(self, answer: Any) -> bool:  # noqa: ANN401
        one = self._followed.get(answer.watch_id)
        return one is not None and one.take(answer)

    def probe(self) -> None:
        """Ask on the same connection whether it lives; raises what speaks against it."""
        newest = max(self._followed.values(), key=lambda one: one.header.revision, default=None)
        if newest is None:
            return
        connection = self._connection
        request = etcdrpc.RangeRequest(key=bounds(newest.range_)[0].encode(), count_only=True)
        answer = connection.call(connection.kv.Range, request, timeout_s=_ANSWER_TIMEOUT_S)
        check(answer, newest.header)
        if connection.token.current(connection, timeout_s=_ANSWER_TIMEOUT_S) != self._token:
            # A stream opened with a token that etcd had just forgotten stays silent for ever.
            raise Ended("the login was renewed")

    def wake(self) -> None:
        self._answers.put(None)

    def close(self) -> None:
        self._requests.put(None)
        self._call.cancel()
        self._reader.join(_JOIN_TIMEOUT_S)

    def _read(self) -> None:
        try:
            for answer in self._call:
                self._answers.put(answer)
        except grpc.RpcError as error:
            self._answers.put(error)
        else:
            self._answers.put(
                StoreUnreachable(f"etcd at {self._connection.endpoint} ended a stream")
            )

    def _next(self, timeout_s: float) -> Any:  # noqa: ANN401
        """The next answer, None after a silence or a `wake`; raises what ended the stream."""
        try:
            answer = self._answers.get(timeout=timeout_s)
        except queue.Empty:
            return None
        if isinstance(answer, Exception):
            raise answer
        return answer
