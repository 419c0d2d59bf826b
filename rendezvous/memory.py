"""A store in memory with the meaning of the real one, for tests, stories and simulations.

A `MemoryServer` is shared by the `MemoryStore` of each client. Time is an injected clock, and no
callback runs before `deliver` is called, so every interleaving can be written down.
"""

import itertools
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from threading import RLock
from typing import assert_never

from easyscale.errors import (
    LeaseLost,
    OutcomeUnknown,
    StoreClosed,
    StoreExhausted,
    StoreRefused,
    StoreUnreachable,
)
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
    bounds,
    check_transaction,
    in_range,
)

_MAX_CALLBACKS = 1_000_000


@dataclass(slots=True)
class _Lease:
    ttl_s: int
    deadline: float


@dataclass(slots=True)
class _Contents:
    """What a wiped server loses."""

    revision: int = 1
    entries: dict[str, Entry] = field(default_factory=dict)
    keys: list[str] = field(default_factory=list)
    leases: dict[LeaseId, _Lease] = field(default_factory=dict)

    def view(self, *ranges: Range) -> View:
        found = {key: self.entries[key] for range_ in ranges for key in self.within(range_)}
        return View.of(self.revision, found)

    def within(self, range_: Range) -> list[str]:
        """The keys of a range, sorted."""
        least, behind = bounds(range_)
        return self.keys[bisect_left(self.keys, least) : bisect_left(self.keys, behind)]

    def holds(self, compare: Compare) -> bool:
        entry = self.entries.get(compare.key)
        match compare:
            case Created(revision=revision):
                return revision == (0 if entry is None else entry.create_revision)
            case Modified(revision=revision):
                return revision == (0 if entry is None else entry.mod_revision)
            case _:
                assert_never(compare)

    def check_leases(self, operations: Sequence[Operation]) -> None:
        for operation in operations:
            if isinstance(operation, Put) and operation.lease is not None:
                lease = operation.lease
                if lease not in self.leases:
                    message = f"lease {lease:x} has ended; {operation.key!r} was not written"
                    raise LeaseLost(message)

    def apply(self, operations: Sequence[Operation]) -> set[str]:
        """Carry out operations as one revision; returns the keys that changed."""
        revision = self.revision + 1
        changed: set[str] = set()
        for operation in operations:
            match operation:
                case Put(key=key, value=value, lease=lease):
                    old = self.entries.get(key)
                    created = revision if old is None else old.create_revision
                    self.entries[key] = Entry(key, value, created, revision, lease)
                    if old is None:
                        insort(self.keys, key)
                    changed.add(key)
                case Delete(key=range_) | DeletePrefix(folder=range_):
                    for key in self.within(range_):
                        del self.entries[key]
                        self.keys.remove(key)
                        changed.add(key)
                case _:
                    assert_never(operation)
        if changed:
            self.revision = revision
        return changed

    def end_lease(self, lease: LeaseId) -> set[str]:
        """Forget a lease and delete its keys as one revision; returns them."""
        if self.leases.pop(lease, None) is None:
            return set()
        held = [entry.key for entry in self.entries.values() if entry.lease == lease]
        return self.apply([Delete(key) for key in held])


class MemoryServer:
    """What all clients share: contents, leases and the watches that wait for `deliver`."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.is_running = True
        #: It takes no puts and grants no leases; reads, deletes and renewals go on, as with etcd.
        self.is_full = False
        self.lock = RLock()
        self.contents = _Contents()
        self.watches: list[MemoryWatch] = []
        self._lease_ids = itertools.count(1)

    def client(self) -> "MemoryStore":
        """Connect one more client."""
        return MemoryStore(self)

    def stop(self) -> None:
        """Take the server away. Leases stand still meanwhile."""
        with self.lock:
            self.expire()
            self.is_running = False
            self._break_watches()

    def start(self) -> None:
        """Bring it back with its contents; every lease has its full time again, as with etcd."""
        with self.lock:
            self.is_running = True
            for lease in self.contents.leases.values():
                lease.deadline = self.clock() + lease.ttl_s

    def wipe(self) -> None:
        """Replace it by an empty one: revisions begin anew, leases are gone."""
        with self.lock:
            self.contents = _Contents()
            self._break_watches()

    def compact(self) -> None:
        """Forget history: a watch that is behind will find the newest view only."""
        with self.lock:
            for watch in self.watches:
                watch.forget()

    def deliver(self) -> int:
        """Run every callback that is due until none is, watch by watch; returns how many ran."""
        count = 0
        while True:
            before = count
            for watch in tuple(self.watches):
                while (callback := self._next_callback(watch)) is not None:
                    callback()
                    count += 1
                    if count >= _MAX_CALLBACKS:
                        message = f"callbacks went on writing for {count} deliveries"
                        raise RuntimeError(message)
            if count == before:
                return count

    def _next_callback(self, watch: "MemoryWatch") -> Callable[[], None] | None:
        with self.lock:
            self.expire()
            is_due = watch in self.watches and watch.is_due
            return watch.advance() if is_due else None

    def expire(self) -> None:
        """End the leases whose time is over, one revision each."""
        if self.is_running:
            now = self.clock()
            leases = self.contents.leases
            for lease in [name for name, held in leases.items() if held.deadline <= now]:
                self.announce(self.contents.end_lease(lease))

    def check_room(self) -> None:
        if self.is_full:
            raise StoreExhausted("the store refuses: it is full", words="it is full")

    def grant(self, ttl_s: int) -> LeaseId:
        self.check_room()
        lease = LeaseId(next(self._lease_ids))
        self.contents.leases[lease] = _Lease(ttl_s, self.clock() + ttl_s)
        return lease

    def announce(self, changed: set[str]) -> None:
        """Line up a view for every watch whose range changed."""
        views: dict[Range, View | None] = {}
        for watch in self.watches:
            range_ = watch.range_
            if range_ not in views:
                hit = any(in_range(key, range_) for key in changed)
                views[range_] = self.contents.view(range_) if hit else None
            view = views[range_]
            if view is not None:
                watch.announce(view)

    def _break_watches(self) -> None:
        for watch in self.watches:
            watch.break_off("the server went away")


class MemoryStore:
    """One client's connection, which can be cut and can lose answers without the others."""

    def __init__(self, server: MemoryServer) -> None:
        self.server = server
        self._is_closed = False
        self._is_cut = False
        #: Why the store turns this client away, in the store's words.
        self.refusal = ""
        self._answers_to_lose: deque[bool] = deque()

    @property
    def is_reachable(self) -> bool:
        return self.server.is_running and not self._is_cut

    def cut(self) -> None:
        """Cut this client off; the server and the other clients go on."""
        with self.server.lock:
            self._is_cut = True
            for watch in self.server.watches:
                if watch.store is self:
                    watch.break_off("the connection was cut")

    def heal(self) -> None:
        """Undo `cut`."""
        self._is_cut = False

    def lose_answer(self, *, executed: bool) -> None:
        """Let the next transaction raise OutcomeUnknown, carried out or not."""
        self._answers_to_lose.append(executed)

    def read(self, *ranges: Range, timeout_s: float) -> View:
        with self.server.lock:
            self._reach(timeout_s)
            return self.server.contents.view(*ranges)

    def transact(
        self, compares: Sequence[Compare], operations: Sequence[Operation], *, timeout_s: float
    ) -> TxnResult:
        check_transaction(compares, operations)
        with self.server.lock:
            self._reach(timeout_s)
            if any(isinstance(operation, Put) for operation in operations):
                self.server.check_room()
            is_lost = bool(self._answers_to_lose)
            if is_lost and not self._answers_to_lose.popleft():
                raise OutcomeUnknown("the request of a transaction was lost")
            contents = self.server.contents
            succeeded = all(contents.holds(compare) for compare in compares)
            if succeeded:
                contents.check_leases(operations)
                self.server.announce(contents.apply(operations))
            if is_lost:
                raise OutcomeUnknown("the answer to a transaction was lost")
            return TxnResult(succeeded, contents.revision)

    def watch(
        self, range_: Range, *, deliver: Callable[[View], None], lost: Callable[[str], None]
    ) -> "MemoryWatch":
        with self.server.lock:
            self._check_open()
            watch = MemoryWatch(self, range_, deliver=deliver, lost=lost)
            self.server.watches.append(watch)
            return watch

    def grant(self, ttl_s: int, *, timeout_s: float) -> LeaseId:
        with self.server.lock:
            self._reach(timeout_s)
            return self.server.grant(ttl_s)

    def keep_alive(self, lease: LeaseId, *, timeout_s: float) -> int:
        with self.server.lock:
            self._reach(timeout_s)
            held = self.server.contents.leases.get(lease)
            if held is None:
                return 0
            held.deadline = self.server.clock() + held.ttl_s
            return held.ttl_s

    def revoke(self, lease: LeaseId, *, timeout_s: float) -> None:
        with self.server.lock:
            self._reach(timeout_s)
            self.server.announce(self.server.contents.end_lease(lease))

    def close(self) -> None:
        with self.server.lock:
            self._is_closed = True
            for watch in [watch for watch in self.server.watches if watch.store is self]:
                watch.close()

    def _reach(self, timeout_s: float) -> None:
        self._check_open()
        if timeout_s <= 0 or not self.is_reachable:
            raise StoreUnreachable(f"no answer from the store within {timeout_s:g} s")
        if self.refusal:
            raise StoreRefused(f"the store refuses: {self.refusal}", words=self.refusal)
        self.server.expire()

    def _check_open(self) -> None:
        if self._is_closed:
            raise StoreClosed("this connection to the store was closed")


class _Phase(Enum):
    #: The next callback is a view of everything.
    LISTING = auto()
    #: Views follow each other without a gap.
    FOLLOWING = auto()
    #: The next callback is `lost`.
    BROKEN = auto()
    #: `lost` ran; a view of everything follows once the store can be reached again.
    LOST = auto()


class MemoryWatch:
    """A watch whose callbacks wait for the server's `deliver`, and longer while it is held."""

    def __init__(
        self,
        store: MemoryStore,
        range_: Range,
        *,
        deliver: Callable[[View], None],
        lost: Callable[[str], None],
    ) -> None:
        self.store = store
        self.range_ = range_
        #: While true nothing is delivered: news is slow on this road.
        self.is_held = False
        self._deliver = deliver
        self._lost = lost
        self._reason = ""
        self._pending: deque[View] = deque()
        self._phase = _Phase.LISTING
        if not store.is_reachable:
            self.break_off("the store cannot be reached")

    def close(self) -> None:
        with self.store.server.lock:
            if self in self.store.server.watches:
                self.store.server.watches.remove(self)

    def break_off(self, reason: str) -> None:
        # LISTING, FOLLOWING -> BROKEN: the connection ended. LOST stays: it was told once.
        if self._phase is not _Phase.LOST:
            self._phase, self._reason = _Phase.BROKEN, reason
        self._pending.clear()

    def forget(self) -> None:
        # FOLLOWING -> LISTING: what was missed cannot be had any more.
        if self._phase is _Phase.FOLLOWING and self._pending:
            self._phase = _Phase.LISTING
            self._pending.clear()

    def announce(self, view: View) -> None:
        if self._phase is _Phase.FOLLOWING:
            self._pending.append(view)

    @property
    def is_due(self) -> bool:
        """Whether a callback could run now."""
        if self.is_held:
            return False
        match self._phase:
            case _Phase.BROKEN:
                return True
            case _Phase.FOLLOWING:
                return bool(self._pending)
            case _Phase.LISTING | _Phase.LOST:
                return self.store.is_reachable
            case _:
                assert_never(self._phase)

    def advance(self) -> Callable[[], None]:
        """Take the callback that is due, to be run outside the server's lock."""
        if self._phase is _Phase.BROKEN:
            # BROKEN -> LOST
            self._phase = _Phase.LOST
            reason = self._reason
            return lambda: self._lost(reason)
        if self._phase is _Phase.FOLLOWING:
            view = self._pending.popleft()
        else:
            # LISTING, LOST -> FOLLOWING: everything, then what changes.
            self._phase = _Phase.FOLLOWING
            view = self.store.server.contents.view(self.range_)
        return lambda: self._deliver(view)
