"""What easyscale asks of etcd, as a Protocol over frozen values: read, transact, watch, lease.

A *range* is a folder, written with its final slash, exactly one key, or all keys between two of
these. Consumers of a watch get the whole range as one `View` each time, never deltas, so a missed
or repeated view is harmless.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import NewType, Protocol

from easyscale.errors import TransactionInvalid

LeaseId = NewType("LeaseId", int)

#: What an etcd server takes in one transaction unless it was started with other limits.
MAX_COMPARES = 128
MAX_OPERATIONS = 128
MAX_TRANSACTION_BYTES = 1_500_000


@dataclass(frozen=True, slots=True)
class Entry:
    """A key as it is stored. (key, create_revision) is its identity, mod_revision its state."""

    key: str
    value: str
    create_revision: int
    mod_revision: int
    lease: LeaseId | None


@dataclass(frozen=True, slots=True)
class View:
    """One or more ranges as they all were at one revision, in the order of their keys."""

    revision: int
    entries: Mapping[str, Entry]

    @classmethod
    def of(cls, revision: int, entries: Mapping[str, Entry]) -> "View":
        """Freeze a copy of `entries`, sorted."""
        return cls(revision, MappingProxyType(dict(sorted(entries.items()))))

    def after(self, revision: int, changes: Mapping[str, Entry | None]) -> "View":
        """The same ranges after one more revision; None is a key that it deleted."""
        entries = dict(self.entries)
        is_sorted = True
        for key, entry in changes.items():
            if entry is None:
                entries.pop(key, None)
            else:
                is_sorted = is_sorted and key in entries
                entries[key] = entry
        # A value that changed in its place, as most do, costs no sorting.
        return (
            View(revision, MappingProxyType(entries)) if is_sorted else View.of(revision, entries)
        )

    def get(self, key: str) -> Entry | None:
        return self.entries.get(key)

    def under(self, folder: str) -> Iterator[Entry]:
        """The entries below a folder of this view."""
        return (entry for key, entry in self.entries.items() if in_range(key, folder))

    @classmethod
    def union(cls, parts: Iterable["View"]) -> "View":
        """Views of ranges that do not overlap as one, each part still at its own revision."""
        views = tuple(parts)
        if len(views) == 1:
            return views[0]
        entries = {key: entry for view in views for key, entry in view.entries.items()}
        return cls.of(max((view.revision for view in views), default=0), entries)


@dataclass(frozen=True, slots=True)
class Stretch:
    """All keys from the beginning of one folder or key to the end of another one.

    One watch of a stretch shows all of it at one revision; watches of its parts would not.
    """

    first: str
    last: str

    def __str__(self) -> str:
        return f"{self.first} to {self.last}"


Range = str | Stretch


def bounds(range_: Range) -> tuple[str, str]:
    """The least key that a range may hold, and the least key behind it."""
    if isinstance(range_, Stretch):
        return bounds(range_.first)[0], bounds(range_.last)[1]
    # "0" follows "/", so this is the first text behind the folder.
    return range_, f"{range_[:-1]}0" if range_.endswith("/") else f"{range_}\0"


def in_range(key: str, range_: Range) -> bool:
    """Tell whether a key belongs to a range."""
    least, behind = bounds(range_)
    return least <= key < behind


@dataclass(frozen=True, slots=True)
class Created:
    """Compare: the key was created at this revision and not deleted since; 0 = it is absent."""

    key: str
    revision: int


@dataclass(frozen=True, slots=True)
class Modified:
    """Compare: the key was last written at this revision; 0 = it is absent."""

    key: str
    revision: int


def absent(key: str) -> Created:
    """Compare: the key does not exist."""
    return Created(key, 0)


Compare = Created | Modified


@dataclass(frozen=True, slots=True)
class Put:
    key: str
    value: str
    lease: LeaseId | None = None


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete one key; an absent key is no error."""

    key: str


@dataclass(frozen=True, slots=True)
class DeletePrefix:
    """Delete everything below a folder."""

    folder: str


Operation = Put | Delete | DeletePrefix


@dataclass(frozen=True, slots=True)
class TxnResult:
    """`revision` is the store's after the transaction: that of its writes if it made any."""

    succeeded: bool
    revision: int


class Watch(Protocol):
    """A running watch."""

    def close(self) -> None:
        """End it; no callback begins after this returned."""


class Store(Protocol):
    """The store of a job. Every call ends by its deadline; any thread may call any method.

    Raises StoreUnreachable when no answer came and nothing was written, its kind StoreExhausted
    when the answer was "not now", StoreRefused when it was that the store will not, StoreClosed
    after `close`.
    """

    def read(self, *ranges: Range, timeout_s: float) -> View:
        """Read ranges linearizably, all at the same revision."""

    def transact(
        self, compares: Sequence[Compare], operations: Sequence[Operation], *, timeout_s: float
    ) -> TxnResult:
        """Carry out all operations if all compares hold, else none.

        Raises OutcomeUnknown when the answer was lost: read back before acting. Raises LeaseLost
        when a put names a lease that has ended; nothing was written then.
        """

    def watch(
        self, range_: Range, *, deliver: Callable[[View], None], lost: Callable[[str], None]
    ) -> Watch:
        """Deliver the range now and after every revision that changes it.

        The callbacks of one watch run one after the other on a thread of the store and must
        return soon. `lost(reason)` is called once when the range can no longer be followed; the
        store keeps trying, and the next view means that it is followed again.
        """

    def grant(self, ttl_s: int, *, timeout_s: float) -> LeaseId:
        """Create a lease that lives at least `ttl_s` after its last renewal."""

    def keep_alive(self, lease: LeaseId, *, timeout_s: float) -> int:
        """Renew a lease; returns its seconds from now, 0 when it has ended with all its keys."""

    def revoke(self, lease: LeaseId, *, timeout_s: float) -> None:
        """End a lease and delete its keys; one that has ended already is no error."""

    def close(self) -> None:
        """End all watches and connections. Leases stay: revoke what shall not outlive us."""


def check_transaction(compares: Sequence[Compare], operations: Sequence[Operation]) -> None:
    """Refuse what no server would take, before anything is sent."""
    if len(compares) > MAX_COMPARES or len(operations) > MAX_OPERATIONS:
        message = (
            f"a transaction of {len(compares)} compares and {len(operations)} operations is over"
            f" etcd's limit of {MAX_COMPARES} and {MAX_OPERATIONS}"
        )
        raise TransactionInvalid(message)
    for operation in operations:
        if isinstance(operation, DeletePrefix) and not operation.folder.endswith("/"):
            raise TransactionInvalid(f"{operation.folder!r} is no folder: it lacks the final slash")
    size = sum(len(o.value.encode()) for o in operations if isinstance(o, Put))
    if size > MAX_TRANSACTION_BYTES:
        message = f"a transaction of {size} bytes is over etcd's limit of {MAX_TRANSACTION_BYTES}"
        raise TransactionInvalid(message)
    puts = [operation.key for operation in operations if isinstance(operation, Put)]
    deletes = [o.key for o in operations if isinstance(o, Delete)]
    deletes += [o.folder for o in operations if isinstance(o, DeletePrefix)]
    for number, key in enumerate(puts):
        if key in puts[:number] or any(in_range(key, range_) for range_ in deletes):
            raise TransactionInvalid(f"a transaction writes {key!r} twice")
