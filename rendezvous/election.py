"""Which agent leads: one key bound to a lease; its create_revision fences what the owner writes.

An old leader can only *think* that it leads: its transactions fail. Stepping down by the own clock
is courtesy to the log, not safety.
"""

import contextlib
from typing import Self

import msgspec

from easyscale.errors import OutcomeUnknown
from easyscale.model import Record, encode
from easyscale.rendezvous.keys import JobKeys
from easyscale.rendezvous.store import Created, Delete, Entry, LeaseId, Put, Store, absent


class LeaderRecord(Record, frozen=True, kw_only=True):
    """Who leads, for people; nothing is decided by it."""

    node: str
    incarnation: str


class Office(msgspec.Struct, frozen=True, kw_only=True):
    """What an agent knows of its own leadership. `token` is 0 while it does not lead."""

    token: int = 0

    @property
    def is_held(self) -> bool:
        return self.token != 0

    def judge(self, entry: Entry | None, *, lease: LeaseId | None) -> Self:
        """What the key says: ours only if it was created under the lease that we keep."""
        is_ours = entry is not None and lease is not None and entry.lease == lease
        return type(self)(token=entry.create_revision if entry and is_ours else 0)


def must_step_down(*, renewed_s: float, now_s: float, ttl_s: float, margin_s: float) -> bool:
    """Whether the lease could have ended by the own clock (CLOCK_BOOTTIME, so suspends count)."""
    return now_s - renewed_s > ttl_s - margin_s


def campaign(
    store: Store, keys: JobKeys, *, record: LeaderRecord, lease: LeaseId, timeout_s: float
) -> Office:
    """Take the key if nobody holds it; returns what then stands."""
    put = Put(keys.leader, encode(record), lease)
    with contextlib.suppress(OutcomeUnknown):  # what stands is read back either way
        store.transact([absent(keys.leader)], [put], timeout_s=timeout_s)
    entry = store.read(keys.leader, timeout_s=timeout_s).get(keys.leader)
    return Office().judge(entry, lease=lease)


def resign(store: Store, keys: JobKeys, office: Office, *, timeout_s: float) -> None:
    """Give the key back if it is still ours."""
    store.transact([Created(keys.leader, office.token)], [Delete(keys.leader)], timeout_s=timeout_s)
