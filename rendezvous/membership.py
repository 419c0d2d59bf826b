"""An agent's registration: a lease kept alive, the node key bound to it, and the leader key.

One thread renews, registers again after a lost lease or an emptied store, and stands in elections.
Nothing here touches a worker: a registration that is lost is a fact for the leader, not a death.
"""

import contextlib
import random
import threading
import time
from typing import Protocol

from easyscale.errors import (
    EasyScaleError,
    LeaseLost,
    OutcomeUnknown,
    StoreRefused,
    StoreUnreachable,
    UsageError,
)
from easyscale.model import Ending, NodeRecord, decode, encode
from easyscale.rendezvous.election import LeaderRecord, Office, campaign, must_step_down, resign
from easyscale.rendezvous.keys import JobKeys
from easyscale.rendezvous.store import Created, Entry, LeaseId, Put, Store, absent

_LEAVE_TIMEOUT_S = 2.0
_BACK_OFF_FIRST_S = 0.1
_BACK_OFF_MOST_S = 1.0


class Listener(Protocol):
    """Whom a membership tells what happened; called from its thread, must return at once."""

    def enrolled(self, create_revision: int) -> None: ...

    def lease_ended(self, reason: str) -> None: ...

    def store_away(self, reason: str) -> None: ...

    def store_back(self, silent_s: float) -> None: ...

    def elected(self, token: int) -> None: ...

    def deposed(self, reason: str) -> None: ...

    def refused(self, error: EasyScaleError) -> None:
        """The registration cannot stand: the name is another's, or etcd will not serve us."""


def boottime_s() -> float:
    """CLOCK_BOOTTIME where there is one: it goes on while the host is suspended."""
    clock = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    return time.clock_gettime(clock)


class Membership:
    """One agent's registration and candidacy in one job."""

    def __init__(
        self, store: Store, keys: JobKeys, listener: Listener, *, ttl_s: int, leader_margin_s: float
    ) -> None:
        self._store = store
        self._keys = keys
        self._listener = listener
        self._ttl_s = ttl_s
        self._margin_s = leader_margin_s
        self._news = threading.Condition()
        self._record: NodeRecord | None = None
        self._written: NodeRecord | None = None
        self._lease: LeaseId | None = None
        self._renewed_s = 0.0
        self._is_candidate = False
        self._office = Office()
        self._leader_is_absent = True
        self._away_since_s: float | None = None
        self._first_tried_s = boottime_s()
        self._is_closing = False
        self._thread = threading.Thread(target=self._run, name="membership", daemon=True)

    # --- the agent's side ----------------------------------------------------------------------

    def enrol(self, record: NodeRecord) -> None:
        """Register with this record, or replace the one that stands; the newest wins."""
        with self._news:
            self._record = record
            self._news.notify()
        if not self._thread.is_alive() and not self._is_closing:
            self._thread.start()

    def stand(self) -> None:
        """Stand in elections from now on."""
        with self._news:
            self._is_candidate = True
            self._news.notify()

    def withdraw(self) -> None:
        """Lead no more and stand in no election."""
        with self._news:
            self._is_candidate = False
            self._news.notify()

    def see_leader(self, entry: Entry | None) -> None:
        """A watch saw the leader's key: an absent one is worth a campaign."""
        with self._news:
            self._leader_is_absent = entry is None
            self._news.notify()

    @property
    def lease(self) -> LeaseId | None:
        """The lease that leased keys are bound to, None while there is none."""
        return self._lease

    def leave(self, how: str) -> None:
        """Say that this agent and its workers have ended, and end the lease with all its keys."""
        self._stop_thread()
        record, lease = self._written, self._lease
        with contextlib.suppress(EasyScaleError):
            if record is not None:
                ending = encode(Ending(how=how))
                gone = self._keys.gone_agent(record.node, record.incarnation)
                self._store.transact([], [Put(gone, ending)], timeout_s=_LEAVE_TIMEOUT_S)
            if lease is not None:
                self._store.revoke(lease, timeout_s=_LEAVE_TIMEOUT_S)
        self._lease = None

    def close(self) -> None:
        """Stop renewing; the registration ends with its lease."""
        self._stop_thread()

    def _stop_thread(self) -> None:
        with self._news:
            self._is_closing = True
            self._news.notify()
        if self._thread.is_alive():
            self._thread.join(timeout=self._ttl_s)

    # --- its thread ----------------------------------------------------------------------------

    @property
    def _call_timeout_s(self) -> float:
        return self._ttl_s / 3

    def _run(self) -> None:
        back_off_s = _BACK_OFF_FIRST_S
        while not self._is_closing:
            try:
                self._attend()
            except (StoreUnreachable, OutcomeUnknown) as error:
                self._note_away(error.message)
                back_off_s = min(2 * back_off_s, _BACK_OFF_MOST_S)
                # Many agents lose and find a store together: spread their return.
                self._sleep(back_off_s * random.uniform(0.5, 1.0), wakes=False)  # noqa: S311
            except (StoreRefused, UsageError) as error:
                self._listener.refused(error)
                return
            else:
                self._note_back()
                back_off_s = _BACK_OFF_FIRST_S
                self._sleep(self._idle_s(), wakes=True)
            self._step_down_if_late()

    def _attend(self) -> None:
        """Do whatever is due: renew, register, stand; raises what the store raises."""
        if self._lease is not None and self._renewal_due():
            self._renew()
        if self._lease is None or self._record != self._written:
            self._register()
        self._settle_office()

    def _renewal_due(self) -> bool:
        return boottime_s() - self._renewed_s >= self._call_timeout_s

    def _idle_s(self) -> float:
        return max(0.0, self._renewed_s + self._call_timeout_s - boottime_s())

    def _sleep(self, seconds: float, *, wakes: bool) -> None:
        with self._news:
            if wakes:
                self._news.wait_for(self._has_news, timeout=seconds)
            else:
                self._news.wait_for(lambda: self._is_closing, timeout=seconds)

    def _has_news(self) -> bool:
        wants_office = self._is_candidate and self._leader_is_absent and not self._office.is_held
        resigns = not self._is_candidate and self._office.is_held
        is_stale = self._record != self._written
        return self._is_closing or is_stale or wants_office or resigns

    def _renew(self) -> None:
        assert self._lease is not None
        asked_s = boottime_s()
        if self._store.keep_alive(self._lease, timeout_s=self._call_timeout_s) > 0:
            self._renewed_s = asked_s
        else:
            self._lose_lease("the store ended it, or came back without it")

    def _lose_lease(self, reason: str) -> None:
        self._lease = self._written = None
        self._depose(f"lease lost: {reason}")
        self._listener.lease_ended(reason)

    def _register(self) -> None:
        """Write our record under a living lease; afterwards the key is read back as ours."""
        record = self._record
        assert record is not None
        if self._lease is None:
            asked_s = boottime_s()
            self._lease = self._store.grant(self._ttl_s, timeout_s=self._call_timeout_s)
            self._renewed_s = asked_s
        key = self._keys.node(record.node)
        entry = self._store.read(key, timeout_s=self._call_timeout_s).get(key)
        if entry is not None and not self._is_ours(entry, record):
            self._await_name(entry, record)
            return
        identity = Created(key, entry.create_revision) if entry else absent(key)
        put = Put(key, encode(record), self._lease)
        try:
            done = self._store.transact([identity], [put], timeout_s=self._call_timeout_s)
        except LeaseLost as error:
            self._lose_lease(error.message)
            return
        if done.succeeded:
            is_first = self._written is None
            self._written = record
            if is_first:
                self._listener.enrolled(entry.create_revision if entry else done.revision)

    def _is_ours(self, entry: Entry, record: NodeRecord) -> bool:
        stands = decode(entry.value, NodeRecord, source=entry.key)
        return stands.incarnation == record.incarnation

    def _await_name(self, entry: Entry, record: NodeRecord) -> None:
        """Another life of the name is registered: its lease ends soon if that life has."""
        stands = decode(entry.value, NodeRecord, source=entry.key)
        waited_s = boottime_s() - self._first_tried_s
        if stands.host == record.host and waited_s < self._ttl_s + 2:
            time.sleep(_BACK_OFF_FIRST_S)
            return
        message = f"node name {record.node!r} is taken by a living agent of host {stands.host!r}"
        raise UsageError(message, hint="--node-name NAME, another one for each agent")

    def _settle_office(self) -> None:
        record, lease = self._written, self._lease
        if record is None or lease is None:
            return
        if self._office.is_held and not self._is_candidate:
            resign(self._store, self._keys, self._office, timeout_s=self._call_timeout_s)
            self._depose("resigned")
        elif self._is_candidate and self._leader_is_absent and not self._office.is_held:
            self._office = campaign(
                self._store,
                self._keys,
                record=LeaderRecord(node=record.node, incarnation=record.incarnation),
                lease=lease,
                timeout_s=self._call_timeout_s,
            )
            self._leader_is_absent = False
            if self._office.is_held:
                self._listener.elected(self._office.token)

    def _step_down_if_late(self) -> None:
        late = must_step_down(
            renewed_s=self._renewed_s,
            now_s=boottime_s(),
            ttl_s=self._ttl_s,
            margin_s=self._margin_s,
        )
        if self._office.is_held and late:
            self._depose(f"no renewal for {self._ttl_s - self._margin_s:g} s")
            self._leader_is_absent = True

    def _depose(self, reason: str) -> None:
        if self._office.is_held:
            self._office = Office()
            self._listener.deposed(reason)

    def _note_away(self, reason: str) -> None:
        if self._away_since_s is None:
            self._away_since_s = boottime_s()
            self._listener.store_away(reason)

    def _note_back(self) -> None:
        if self._away_since_s is not None:
            silent_s = boottime_s() - self._away_since_s
            self._away_since_s = None
            self._listener.store_back(silent_s)
