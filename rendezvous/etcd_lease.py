"""The keepalives of one connection: a single stream, open for as long as it answers in time.

    request -> its answer, by the deadline -> request ...   late or broken: closed, the next reopens

A stream a keepalive is what costs etcd most of a job at rest: 1,000 agents send 600 a second.
"""

import queue
import threading
import time
from typing import Any

from easyscale.errors import StoreUnreachable
from easyscale.rendezvous.etcd_connection import Connection, etcdrpc, grpc
from easyscale.rendezvous.store import LeaseId


class LeaseStream:
    """Renews leases one at a time; any thread may ask.

    Nobody reads while no answer is due: a reader of grpc's wakes ten times a second.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        self._stream: _Stream | None = None

    def renew(self, lease: LeaseId, *, timeout_s: float) -> int:
        """Seconds that the lease lives from now, 0 when it has ended.

        Raises StoreUnreachable without an answer in time, else what grpc raises.
        """
        deadline = time.monotonic() + timeout_s
        if not self._lock.acquire(timeout=timeout_s):
            raise StoreUnreachable(f"etcd at {self._connection.endpoint} still owes an answer")
        try:
            return int(
                self._connection.with_token(
                    lambda left_s, metadata: self._renew(lease, left_s, metadata),
                    max(0.001, deadline - time.monotonic()),
                )
            )
        finally:
            self._lock.release()

    def _renew(self, lease: LeaseId, timeout_s: float, metadata: Any) -> int:  # noqa: ANN401
        deadline = time.monotonic() + timeout_s
        if self._stream is not None and self._stream.serves(metadata):
            try:
                return self._ask(self._stream, lease, deadline)
            except (grpc.RpcError, _Ended):
                pass  # it may have been broken since the last keepalive: a new one tells
        self._drop()
        self._stream = _Stream(self._connection, metadata)
        return self._ask(self._stream, lease, deadline)

    def _ask(self, stream: "_Stream", lease: LeaseId, deadline: float) -> int:
        is_answered = False
        try:
            ttl_s = stream.ask(lease, timeout_s=max(0.001, deadline - time.monotonic()))
            is_answered = True
        finally:
            if not is_answered:
                self._drop()  # the next question would get the answer to this one
        return ttl_s

    def close(self) -> None:
        """End the stream; whoever waits for an answer hears of it."""
        self._drop()

    def _drop(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.close()


class _Ended(StoreUnreachable):
    """The server ended the stream in good order."""


class _Stream:
    def __init__(self, connection: Connection, metadata: Any) -> None:  # noqa: ANN401
        self._endpoint = connection.endpoint
        self._metadata = metadata
        self._requests: queue.SimpleQueue[Any] = queue.SimpleQueue()
        requests = iter(self._requests.get, None)
        self._call = connection.lease.LeaseKeepAlive(requests, metadata=metadata)

    def serves(self, metadata: Any) -> bool:  # noqa: ANN401
        """It lives, and was opened with this very login."""
        return metadata == self._metadata and bool(self._call.is_active())

    def ask(self, lease: LeaseId, *, timeout_s: float) -> int:
        is_late = threading.Event()

        def give_up() -> None:
            is_late.set()
            self._call.cancel()

        # grpc knows of deadlines for streams, not for the answers in one.
        timer = threading.Timer(timeout_s, give_up)
        timer.daemon = True
        timer.start()
        self._requests.put(etcdrpc.LeaseKeepAliveRequest(ID=lease))
        try:
            return int(next(self._call).TTL)
        except StopIteration:
            raise _Ended(f"etcd at {self._endpoint} ended a stream") from None
        except grpc.RpcError as error:
            if not is_late.is_set():
                raise
            raise StoreUnreachable(
                f"etcd at {self._endpoint} does not answer (deadline exceeded)"
            ) from error
        finally:
            timer.cancel()

    def close(self) -> None:
        self._requests.put(None)
        self._call.cancel()
