"""The real store: etcd's v3 API over as many endpoints as are given.

Endpoints are asked in turn, beginning with the one that answered last. Importing this file loads
grpc (about 0.2 s and 25 MB), so only who connects to an etcd does it.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, assert_never

from easyscale.errors import (
    OutcomeUnknown,
    StoreClosed,
    StoreError,
    StoreExhausted,
    StoreUnreachable,
)
from easyscale.rendezvous.endpoints import EtcdSettings, await_versions
from easyscale.rendezvous.etcd_connection import (
    Connection,
    Token,
    entry_of,
    etcdrpc,
    grpc,
    key_range,
    meaning,
)
from easyscale.rendezvous.etcd_lease import LeaseStream
from easyscale.rendezvous.etcd_watch import EtcdWatch, EtcdWatches
from easyscale.rendezvous.store import (
    Compare,
    Created,
    Delete,
    DeletePrefix,
    Entry,
    LeaseId,
    Modified,
    Operation,
    Put,
    Range,
    TxnResult,
    View,
    check_transaction,
)

T = TypeVar("T")

#: A connection that answered so lately is trusted to carry a transaction: a little longer than
#: between two records of a job's progress, so that these ask nothing before they are written.
_FRESH_S = 1.5
#: Read to see whether etcd answers. It lies below what a role must allow, and nobody writes it.
_PROBED = "/easyscale/alive"


def connect(settings: EtcdSettings, *, timeout_s: float) -> "EtcdStore":
    """Wait for an etcd that can serve us; raises StoreUnreachable or StoreRefused.

    `warning` of the store says what is wrong with its version, or nothing.
    """
    deadline = time.monotonic() + timeout_s
    endpoint, warning = await_versions(settings, timeout_s=timeout_s)
    store = EtcdStore(settings, first=settings.endpoints.index(endpoint), warning=warning)
    try:
        # A wrong password or a server without a leader shows here, not in the middle of a job.
        store.read(_PROBED, timeout_s=max(1.0, deadline - time.monotonic()))
    except StoreError:
        store.close()
        raise
    return store


class EtcdStore:
    """A connection to etcd; made by `connect`."""

    def __init__(self, settings: EtcdSettings, *, first: int, warning: str) -> None:
        self.warning = warning
        self._settings = settings
        self._token = Token(settings)
        self._connections = [Connection(e, settings, self._token) for e in settings.endpoints]
        self._keepalives = {c: LeaseStream(c) for c in self._connections}
        self._current = first
        self._answered_at = 0.0
        self._watches = EtcdWatches(self._open_own)
        self._is_closed = False

    def read(self, *ranges: Range, timeout_s: float) -> View:
        return self._ask(lambda c, left_s: _read(c, ranges, left_s), timeout_s)

    def transact(
        self, compares: Sequence[Compare], operations: Sequence[Operation], *, timeout_s: float
    ) -> TxnResult:
        check_transaction(compares, operations)
        request = etcdrpc.TxnRequest(
            compare=[_compare(compare) for compare in compares],
            success=[_operation(operation) for operation in operations],
        )
        deadline = time.monotonic() + timeout_s
        while True:
            if time.monotonic() - self._answered_at > _FRESH_S:
                # Whoever answers this will take the transaction; so a store that is away is told
                # apart from a lost answer.
                self._ask(_probe, deadline - time.monotonic())
            answer = self._send(request, deadline)
            if answer is not None:
                return TxnResult(answer.succeeded, answer.header.revision)

    def _send(self, request: Any, deadline: float) -> Any:  # noqa: ANN401
        """Send a transaction to the endpoint that answered last; None: it never left us."""
        self._check_open()
        connection = self._connections[self._current]
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            raise StoreUnreachable(f"etcd at {connection.endpoint} was too slow to be asked")
        try:
            answer = connection.call(connection.kv.Txn, request, timeout_s=left_s)
        except grpc.RpcError as error:
            self._answered_at = 0.0
            fact = meaning(error, connection.endpoint, may_have_written=True)
            if isinstance(fact, StoreUnreachable) and not isinstance(fact, StoreExhausted):
                return None
            raise fact from error
        except StoreClosed:
            raise OutcomeUnknown("the store was closed during a transaction") from None
        self._answered_at = time.monotonic()
        return answer

    def watch(
        self, range_: Range, *, deliver: Callable[[View], None], lost: Callable[[str], None]
    ) -> EtcdWatch:
        self._check_open()
        return self._watches.add(range_, deliver=deliver, lost=lost)

    def grant(self, ttl_s: int, *, timeout_s: float) -> LeaseId:
        request = etcdrpc.LeaseGrantRequest(TTL=ttl_s)
        answer = self._ask(
            lambda c, left_s: c.call(c.lease.LeaseGrant, request, timeout_s=left_s), timeout_s
        )
        return LeaseId(answer.ID)

    def keep_alive(self, lease: LeaseId, *, timeout_s: float) -> int:
        return self._ask(
            lambda c, left_s: self._keepalives[c].renew(lease, timeout_s=left_s), timeout_s
        )

    def revoke(self, lease: LeaseId, *, timeout_s: float) -> None:
        request = etcdrpc.LeaseRevokeRequest(ID=lease)

        def attempt(connection: Connection, left_s: float) -> None:
            try:
                connection.call(connection.lease.LeaseRevoke, request, timeout_s=left_s)
            except grpc.RpcError as error:
                if error.code() is not grpc.StatusCode.NOT_FOUND:
                    raise

        self._ask(attempt, timeout_s)

    def close(self) -> None:
        self._is_closed = True
        self._watches.close()
        for connection in self._connections:
            connection.close()
            self._keepalives[connection].close()

    def _ask(self, attempt: Callable[[Connection, float], T], timeout_s: float) -> T:
        """Ask one endpoint after the other, each with its share of the time that is left."""
        self._check_open()
        deadline = time.monotonic() + timeout_s
        count, first = len(self._connections), self._current
        failures: list[StoreUnreachable] = []
        for tried in range(count):
            number = (first + tried) % count
            connection = self._connections[number]
            left_s = (deadline - time.monotonic()) / (count - tried)
            try:
                answer = attempt(connection, max(0.001, left_s))
            except StoreUnreachable as error:
                failures.append(error)
                continue
            except grpc.RpcError as error:
                self._check_open()
                fact = meaning(error, connection.endpoint)
                if not isinstance(fact, StoreUnreachable):
                    raise fact from error
                failures.append(fact)
                continue
            self._current, self._answered_at = number, time.monotonic()
            return answer
        raise _together(failures)

    def _open_own(self, attempt: int) -> Connection:
        """A connection for watches alone; every further attempt takes the next endpoint."""
        endpoints = self._settings.endpoints
        endpoint = endpoints[(self._current + attempt) % len(endpoints)]
        return Connection(endpoint, self._settings, self._token)

    def _check_open(self) -> None:
        if self._is_closed:
            raise StoreClosed("this connection to etcd was closed")


def _together(failures: Sequence[StoreUnreachable]) -> StoreUnreachable:
    """What all endpoints came to; one that answers says more than those that do not."""
    message = "; ".join(error.message for error in failures)
    refused = next((error for error in failures if isinstance(error, StoreExhausted)), None)
    if refused is None:
        return StoreUnreachable(message)
    return StoreExhausted(message, hint=refused.hint, words=refused.words)


def _read(connection: Connection, ranges: Sequence[Range], timeout_s: float) -> View:
    """Read one range after the other, all as they were when the first was read.

    A transaction of reads would be one call, but giving it up while it runs can end the server:
    etcd before 3.5.7 (https://github.com/etcd-io/etcd/issues/14110 and 14891).
    """
    deadline = time.monotonic() + timeout_s
    revision, left = 0, list(ranges)
    entries: list[Entry] = []
    while left:
        request = etcdrpc.RangeRequest(**key_range(left[0]), revision=revision)
        left_s = max(0.001, deadline - time.monotonic())
        try:
            answer = connection.call(connection.kv.Range, request, timeout_s=left_s)
        except grpc.RpcError as error:
            if not revision or error.code() is not grpc.StatusCode.OUT_OF_RANGE:
                raise
            revision, entries, left = 0, [], list(ranges)  # compacted meanwhile: all of it again
            continue
        revision = revision or answer.header.revision
        entries += map(entry_of, answer.kvs)
        del left[0]
    return View.of(revision, {entry.key: entry for entry in entries})


def _probe(connection: Connection, timeout_s: float) -> None:
    request = etcdrpc.RangeRequest(key=_PROBED.encode(), count_only=True)
    connection.call(connection.kv.Range, request, timeout_s=timeout_s)


def _compare(compare: Compare) -> Any:  # noqa: ANN401 - the messages of etcd3 have no types
    match compare:
        case Created(key=key, revision=revision):
            return etcdrpc.Compare(
                key=key.encode(), target=etcdrpc.Compare.CREATE, create_revision=revision
            )
        case Modified(key=key, revision=revision):
            return etcdrpc.Compare(
                key=key.encode(), target=etcdrpc.Compare.MOD, mod_revision=revision
            )
        case _:
            assert_never(compare)


def _operation(operation: Operation) -> Any:  # noqa: ANN401
    match operation:
        case Put(key=key, value=value, lease=lease):
            put = etcdrpc.PutRequest(key=key.encode(), value=value.encode(), lease=lease or 0)
            return etcdrpc.RequestOp(request_put=put)
        case Delete(key=range_) | DeletePrefix(folder=range_):
            delete = etcdrpc.DeleteRangeRequest(**key_range(range_))
            return etcdrpc.RequestOp(request_delete_range=delete)
        case _:
            assert_never(operation)
