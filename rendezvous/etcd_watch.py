"""Follows one range of etcd: list at a revision, then watch from the next, for ever anew.

    LIST -> deliver -> WATCH -> deliver ... -> broken or silent -> pause -> LIST

Consumers get whole views, so whatever happened between two of them cannot be missed.
"""

import queue
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import groupby
from typing import Any

from easyscale.errors import StoreClosed, StoreError, StoreUnreachable
from easyscale.rendezvous.etcd_connection import (
    Connection,
    entry_of,
    etcdrpc,
    grpc,
    key_range,
    meaning,
)
from easyscale.rendezvous.store import Entry, Range, View, bounds

#: A stream this long without news is asked whether it lives; keepalives of grpc do not tell.
SILENCE_S = 2.0
_ANSWER_TIMEOUT_S = 2.0
_SHORTEST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 1.0
_JOIN_TIMEOUT_S = 5.0
_DELETE = 1


class _Ended(StoreError):
    """The server ended a watch in good order: list again at once, nothing is lost."""


class EtcdWatch:
    """A watch with a connection and a thread of its own."""

    def __init__(
        self,
        connect: Callable[[int], Connection],
        range_: Range,
        *,
        deliver: Callable[[View], None],
        lost: Callable[[str], None],
    ) -> None:
        self._connect = connect
        self._range = range_
        self._deliver = deliver
        self._lost = lost
        self._closing = threading.Event()
        self._lock = threading.Lock()
        self._connection: Connection | None = None
        #: Attempts since the range was last seen to be followed.
        self._failures = 0
        self._is_lost = False
        self._thread = threading.Thread(target=self._run, name=f"watch {range_}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def is_open(self) -> bool:
        return not self._closing.is_set()

    def close(self) -> None:
        """End it; waits for a callback that is running, unless it is the one that calls."""
        self._closing.set()
        with self._lock:
            if self._connection is not None:
                # Cancels whatever is in flight.
                self._connection.close()
        if threading.current_thread() is not self._thread:
            self._thread.join(_JOIN_TIMEOUT_S)

    def _run(self) -> None:
        while self.is_open:
            try:
                with self._own_connection() as connection:
                    self._follow(connection)
            except StoreClosed:
                continue
            except StoreError as error:
                self._pause(error)

    @contextmanager
    def _own_connection(self) -> Iterator[Connection]:
        connection = self._connect(self._failures)
        with self._lock:
            self._connection = connection
            if not self.is_open:
                connection.close()
        try:
            yield connection
        except grpc.RpcError as error:
            raise meaning(error, connection.endpoint) from error
        except ValueError as error:
            # What grpc says of a channel that `close` has closed meanwhile.
            if self.is_open:
                raise
            raise StoreClosed("this watch was closed") from error
        finally:
            with self._lock:
                connection.close()

    def _pause(self, error: StoreError) -> None:
        self._failures += 1
        if not self.is_open or (isinstance(error, _Ended) and self._failures == 1):
            return
        if not self._is_lost:
            self._is_lost = True
            self._lost(error.message)
        longest_s = min(_LONGEST_PAUSE_S, _SHORTEST_PAUSE_S * 2.0 ** min(self._failures, 8))
        # Spread, so that a thousand agents do not knock at the same moment.
        self._closing.wait(random.uniform(_SHORTEST_PAUSE_S, longest_s))  # noqa: S311

    def _follow(self, connection: Connection) -> None:
        """List, then watch until something breaks; always ends by raising."""
        header, entries = self._list(connection)
        self._give(View.of(header.revision, entries))
        token = connection.token.current(connection, timeout_s=_ANSWER_TIMEOUT_S)
        stream = _Stream(connection, self._range, header.revision + 1, token=token)
        try:
            created = stream.next(_ANSWER_TIMEOUT_S)
            if created is None:
                raise StoreUnreachable(f"etcd at {connection.endpoint} does not begin a watch")
            self._check(created, header)
            while self.is_open:
                response = stream.next(SILENCE_S)
                if response is None:
                    self._probe(connection, header, token)
                else:
                    self._check(response, header)
                    header = response.header
                    self._apply(response, entries)
        finally:
            stream.close()

    def _list(self, connection: Connection) -> tuple[Any, dict[str, Entry]]:
        request = etcdrpc.RangeRequest(**key_range(self._range))
        answer = connection.call(connection.kv.Range, request, timeout_s=_ANSWER_TIMEOUT_S)
        return answer.header, {entry.key: entry for entry in map(entry_of, answer.kvs)}

    def _apply(self, response: Any, entries: dict[str, Entry]) -> None:  # noqa: ANN401
        """Deliver the range after each revision, never between two events of one."""
        for revision, events in groupby(response.events, key=lambda event: event.kv.mod_revision):
            for event in events:
                entry = entry_of(event.kv)
                if event.type == _DELETE:
                    entries.pop(entry.key, None)
                else:
                    entries[entry.key] = entry
            self._failures = 0
            self._give(View.of(revision, entries))

    def _probe(self, connection: Connection, header: Any, token: str) -> None:  # noqa: ANN401
        request = etcdrpc.RangeRequest(key=bounds(self._range)[0].encode(), count_only=True)
        answer = connection.call(connection.kv.Range, request, timeout_s=_ANSWER_TIMEOUT_S)
        self._check(answer, header)
        if connection.token.current(connection, timeout_s=_ANSWER_TIMEOUT_S) != token:
            # A stream opened with a token that etcd had just forgotten stays silent for ever.
            raise _Ended("the login was renewed")
        self._failures = 0

    def _check(self, answer: Any, header: Any) -> None:  # noqa: ANN401
        """Notice a store that is not the one that was listed: emptied, or another cluster."""
        same = answer.header.cluster_id == header.cluster_id
        if not same or answer.header.revision < header.revision:
            raise _Ended("the store is another one than before")
        if getattr(answer, "canceled", False):
            raise _Ended(f"etcd ended the watch: {answer.cancel_reason or 'compacted'}")

    def _give(self, view: View) -> None:
        if self.is_open:
            self._is_lost = False
            self._deliver(view)


class _Stream:
    """A watch stream whose answers can be waited for with a deadline."""

    def __init__(self, connection: Connection, range_: Range, revision: int, *, token: str) -> None:
        create = etcdrpc.WatchCreateRequest(start_revision=revision, **key_range(range_))
        self._endpoint = connection.endpoint
        self._ended = threading.Event()
        self._answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
        requests = self._requests(etcdrpc.WatchRequest(create_request=create))
        self._call = connection.open_stream(connection.watch.Watch, requests, token)
        self._reader = threading.Thread(target=self._read, name=f"read {range_}", daemon=True)
        self._reader.start()

    def _requests(self, create: Any) -> Iterator[Any]:  # noqa: ANN401
        yield create
        # An end of the requests might be taken for an end of the watch.
        self._ended.wait()

    def _read(self) -> None:
        try:
            for answer in self._call:
                self._answers.put(answer)
        except grpc.RpcError as error:
            self._answers.put(error)
        else:
            self._answers.put(StoreUnreachable(f"etcd at {self._endpoint} ended a stream"))

    def next(self, timeout_s: float) -> Any:  # noqa: ANN401
        """The next answer, or None after a silence; raises what ended the stream."""
        try:
            answer = self._answers.get(timeout=timeout_s)
        except queue.Empty:
            return None
        if isinstance(answer, Exception):
            raise answer
        return answer

    def close(self) -> None:
        self._ended.set()
        self._call.cancel()
        self._reader.join(_JOIN_TIMEOUT_S)
