"""Follows ranges of etcd on one stream: list, then watch from the next revision, for ever anew.

    CONNECT -> for each range: LIST -> deliver -> WATCH -> deliver ... -> broken, silent -> pause

Consumers get whole views, so whatever happened between two of them cannot be missed. All watches
of a store share a connection: an agent at rest asks one question a silence, not one a range.
"""

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from easyscale.errors import StoreClosed, StoreError, StoreUnreachable
from easyscale.rendezvous.etcd_connection import Connection, grpc, meaning
from easyscale.rendezvous.etcd_stream import Ended, Followed, WatchStream
from easyscale.rendezvous.store import Range, View

#: A stream this long without news is asked whether it lives; keepalives of grpc do not tell.
SILENCE_S = 2.0
_SHORTEST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 1.0
_JOIN_TIMEOUT_S = 5.0


class EtcdWatch:
    """One watched range; made by `EtcdWatches.add`."""

    def __init__(
        self,
        range_: Range,
        *,
        deliver: Callable[[View], None],
        lost: Callable[[str], None],
        closed: Callable[[], None],
    ) -> None:
        self.range_ = range_
        self._deliver = deliver
        self._lost = lost
        self._closed = closed
        self._is_lost = False
        self._closing = threading.Event()
        #: Held while a callback runs; a callback may close its own watch.
        self._calling = threading.RLock()

    @property
    def is_open(self) -> bool:
        return not self._closing.is_set()

    def close(self) -> None:
        """End it; waits for a callback that is running, unless it is the one that calls."""
        self._closing.set()
        if self._calling.acquire(timeout=_JOIN_TIMEOUT_S):
            self._calling.release()
        self._closed()

    def give(self, view: View) -> None:
        with self._calling:
            if self.is_open:
                self._is_lost = False
                self._deliver(view)

    def lose(self, reason: str) -> None:
        """Say once that the range cannot be followed now."""
        with self._calling:
            if self.is_open and not self._is_lost:
                self._is_lost = True
                self._lost(reason)


class EtcdWatches:
    """The watches of one store: one connection and one thread, from the first watch on."""

    def __init__(self, connect: Callable[[int], Connection]) -> None:
        self._connect = connect
        self._lock = threading.Lock()
        self._watches: list[EtcdWatch] = []
        self._connection: Connection | None = None
        self._stream: WatchStream | None = None
        #: Attempts since a range was last seen to be followed.
        self._failures = 0
        self._is_closing = False
        #: A watch was added or closed, or the store was.
        self._news = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watches", daemon=True)

    def add(
        self, range_: Range, *, deliver: Callable[[View], None], lost: Callable[[str], None]
    ) -> EtcdWatch:
        watch = EtcdWatch(range_, deliver=deliver, lost=lost, closed=self._notify)
        with self._lock:
            if self._is_closing:
                raise StoreClosed("this connection to etcd was closed")
            self._watches.append(watch)
            if not self._thread.is_alive():
                self._thread.start()
        self._notify()
        return watch

    def close(self) -> None:
        with self._lock:
            self._is_closing = True
            watches = tuple(self._watches)
            if self._connection is not None:
                # Cancels whatever is in flight.
                self._connection.close()
        for watch in watches:
            watch.close()
        self._notify()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(_JOIN_TIMEOUT_S)

    def _notify(self) -> None:
        self._news.set()
        with self._lock:
            if self._stream is not None:
                self._stream.wake()

    # --- the thread ----------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._is_closing:
            if not self._open_watches():
                self._news.wait()
                self._news.clear()
                continue
            try:
                with self._own_connection() as connection:
                    self._serve(connection)
            except StoreClosed:
                continue
            except StoreError as error:
                self._pause(error)
            except Exception as error:  # noqa: BLE001 - whoever follows would be blind for ever
                # No room for a reader's thread, say: that may pass.
                self._pause(StoreUnreachable(f"following etcd broke: {error!r}"))

    def _open_watches(self) -> tuple[EtcdWatch, ...]:
        with self._lock:
            self._watches = [watch for watch in self._watches if watch.is_open]
            return tuple(self._watches)

    def _take_stock(self) -> tuple[EtcdWatch, ...]:
        self._news.clear()  # first: what comes or goes from here on is news again
        return self._open_watches()

    @contextmanager
    def _own_connection(self) -> Iterator[Connection]:
        connection = self._connect(self._failures)
        with self._lock:
            self._connection = connection
            if self._is_closing:
                connection.close()
        try:
            yield connection
        except grpc.RpcError as error:
            raise meaning(error, connection.endpoint) from error
        except ValueError as error:
            # What grpc says of a channel that `close` has closed meanwhile.
            if not self._is_closing:
                raise
            raise StoreClosed("this connection to etcd was closed") from error
        finally:
            with self._lock:
                connection.close()

    def _pause(self, error: StoreError) -> None:
        self._failures += 1
        if self._is_closing or (isinstance(error, Ended) and self._failures == 1):
            return
        for watch in self._open_watches():
            watch.lose(error.message)
        longest_s = min(_LONGEST_PAUSE_S, _SHORTEST_PAUSE_S * 2.0 ** min(self._failures, 8))
        # Spread, so that a thousand agents do not knock at the same moment.
        pause_s = random.uniform(_SHORTEST_PAUSE_S, longest_s)  # noqa: S311
        self._news.wait(pause_s)

    def _serve(self, connection: Connection) -> None:
        """Follow what there is to follow until nothing is, or until something breaks."""
        followed: dict[EtcdWatch, Followed] = {}
        try:
            while watches := self._take_stock():
                for watch in followed.keys() - set(watches):
                    self._stream_of(connection).end(followed.pop(watch))
                for watch in watches:
                    if watch not in followed and watch.is_open:
                        followed[watch] = self._follow(connection, watch)
                self._listen(connection)
        finally:
            with self._lock:
                stream, self._stream = self._stream, None
            if stream is not None:
                stream.close()

    def _follow(self, connection: Connection, watch: EtcdWatch) -> Followed:
        """List, then watch from the next revision on."""
        one = Followed.listed(connection, watch.range_, watch.give)
        self._stream_of(connection).begin(one)
        return one

    def _stream_of(self, connection: Connection) -> WatchStream:
        """The stream of this connection, opened behind the first list: that one has logged in."""
        with self._lock:
            if self._stream is not None:
                return self._stream
        stream = WatchStream(connection)
        with self._lock:
            self._stream = stream
        return stream

    def _listen(self, connection: Connection) -> None:
        """Take answers until a watch comes or goes."""
        stream = self._stream_of(connection)
        while not self._news.is_set():
            if stream.take(SILENCE_S):
                self._failures = 0
            elif not self._news.is_set():
                stream.probe()
                self._failures = 0
