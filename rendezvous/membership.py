"""A node's registration: one key under one lease, renewed and verified by a thread of its own.

    enrol -> lease, key created -> renewed every third of its life -> leave: gone/, revoked
                     ^                     | lost, or the store came back without it
                     +--- a fresh record <-+

While the store is away, or refuses, nothing here ends anything: the thread retries and says so
once. Nothing but a name that another one holds, and an error that nobody foresaw, ends the agent.
"""

import math
import random
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from easyscale.errors import (
    EasyScaleError,
    FormatError,
    LeaseLost,
    OutcomeUnknown,
    StoreClosed,
    StoreError,
    StoreExhausted,
    StoreRefused,
    ThreadBroke,
    UsageError,
)
from easyscale.model import Ending, NodeRecord, decode, encode
from easyscale.rendezvous import election
from easyscale.rendezvous.election import Office, Term, boottime_s
from easyscale.rendezvous.keys import JobKeys
from easyscale.rendezvous.store import Created, Entry, LeaseId, Put, Store, absent

__all__ = ["Ear", "Membership", "boottime_s"]

#: Retries while the store is away, spread so that a thousand agents do not come back at once.
_RETRY_S = (0.2, 1.0)
_MOST_REFUSALS = 8
_LEAVE_TIMEOUT_S = 1.0
#: A registration of an earlier agent of this host vanishes within its lease and this.
_NAME_MARGIN_S = 2.0


class Ear(Protocol):
    """Whoever is told; called from the membership's thread, must return at once."""

    def enrolled(self, create_revision: int) -> None: ...

    def lease_ended(self, reason: str) -> None: ...

    def store_away(self, error: StoreError) -> None: ...

    def store_back(self, silent_s: float) -> None: ...

    def elected(self, token: int) -> None: ...

    def deposed(self, reason: str) -> None: ...

    def refused(self, error: EasyScaleError) -> None: ...


class Membership:
    """Keeps one registration, and stands in elections with its lease."""

    def __init__(
        self,
        store: Store,
        keys: JobKeys,
        ear: Ear,
        *,
        ttl_s: int,
        leader_margin_s: float,
        clock: Callable[[], float] = boottime_s,
    ) -> None:
        self._store = store
        self._keys = keys
        self._ear = ear
        self._ttl_s = ttl_s
        self._margin_s = leader_margin_s
        self._clock = clock
        self._news = threading.Condition()
        self._record: NodeRecord | None = None
        self._written: NodeRecord | None = None
        self._lease: LeaseId | None = None
        self._revision: int | None = None
        self._office = Office("")
        self._vacant = False
        self._away_since_s: float | None = None
        #: Rounds in a row that the store has refused.
        self._refusals = 0
        self._heard_s = clock()
        self._name_taken_since_s: float | None = None
        self._verify = False
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="membership", daemon=True)

    @property
    def lease(self) -> LeaseId | None:
        """The lease that leased keys are bound to, while the registration stands."""
        return self._lease if self._revision is not None else None

    def enrol(self, record: NodeRecord) -> None:
        """Register with this record, or replace the one that stands; returns at once."""
        with self._news:
            self._record = record
            self._news.notify()
            if not self._thread.is_alive() and not self._closing:
                self._thread.start()

    def stand(self) -> None:
        """Take part in elections from now on."""
        with self._news:
            self._office = replace(self._office, stands=True)
            self._vacant = True
            self._news.notify()

    def withdraw(self) -> None:
        """Stand in no election; a term that runs ends with the lease, or when we leave."""
        with self._news:
            self._office = replace(self._office, stands=False)
            self._vacant = False

    def see_leader(self, entry: Entry | None) -> None:
        """The leader key, as some view has it: an old one may not show our term yet."""
        with self._news:
            if entry is None and self._office.token is not None:
                self._verify = True
                self._news.notify()
                return
        self._take_leader(entry)

    def _take_leader(self, entry: Entry | None) -> None:
        with self._news:
            term = election.see(self._office, entry)
            self._office = term.office
            self._vacant = term.try_now
            if term.try_now:
                self._news.notify()
        self._tell(term)

    def leave(self, how: str) -> None:
        """Say that this agent and its workers have ended, then let go of the lease."""
        self._stop_thread()
        record, lease, self._lease = self._written or self._record, self._lease, None
        if record is None:
            return
        key = self._keys.gone_agent(record.node, record.incarnation)
        try:
            put = Put(key, encode(Ending(how=how)))
            self._store.transact([], [put], timeout_s=_LEAVE_TIMEOUT_S)
            if lease is not None:
                self._store.revoke(lease, timeout_s=_LEAVE_TIMEOUT_S)
        except EasyScaleError:
            return  # the lease ends by itself; others wait for that long

    def close(self, *, within_s: float = math.inf) -> None:
        """End the thread and let go of the lease, if `leave` has not; later it ends by itself."""
        ends_s = time.monotonic() + within_s
        self._stop_thread(within_s=within_s)
        lease, self._lease = self._lease, None
        left_s = min(_LEAVE_TIMEOUT_S, ends_s - time.monotonic())
        if lease is not None and left_s > 0:
            try:
                self._store.revoke(lease, timeout_s=left_s)
            except EasyScaleError:
                return  # as in leave

    def _stop_thread(self, *, within_s: float = math.inf) -> None:
        with self._news:
            self._closing = True
            self._news.notify()
        if self._thread.is_alive():
            self._thread.join(timeout=min(2 * self._call_timeout_s, within_s))

    # --- the thread ----------------------------------------------------------------------------

    @property
    def _call_timeout_s(self) -> float:
        """Three tries within a lease; while leading, none may outlast the term."""
        usual_s = self._ttl_s / 3
        if self._office.token is None:
            return usual_s
        until_s = self._office.leads_until(ttl_s=self._ttl_s, margin_s=self._margin_s)
        return min(usual_s, max(until_s - self._clock(), _RETRY_S[0]))

    def _run(self) -> None:
        try:
            while not self._closing:
                pause_s = self._round()
                self._watch_clock()
                self._wait(pause_s)
        except Exception as error:
            if isinstance(error, StoreClosed) and self._closing:
                return  # under what we waited for
            self._ear.refused(ThreadBroke.of(error, name=self._thread.name))
            if not isinstance(error, EasyScaleError):
                raise

    def _round(self) -> float:
        """Do what is due; returns after how long the next round is."""
        try:
            self._work()
        except StoreClosed:
            raise
        except OutcomeUnknown:
            self._verify = True  # what stands is read back before anything else is done
            return _RETRY_S[0]
        except LeaseLost:
            self._lose_lease("the store ended it")
            return _RETRY_S[0]
        except StoreError as error:
            self._note_away(error)
            # Whoever refuses has answered at once, and a login costs it much.
            longest_s = min(_RETRY_S[1] * 2.0**self._refusals, max(self._ttl_s / 3, _RETRY_S[1]))
            return random.uniform(_RETRY_S[0], longest_s)  # noqa: S311 - guards nothing
        self._refusals = 0
        self._note_back()
        return self._next_in_s()

    def _wait(self, pause_s: float) -> None:
        with self._news:
            self._news.wait_for(self._has_news, timeout=max(pause_s, 0.0))

    def _has_news(self) -> bool:
        if self._closing:
            return True
        if self._verify:
            return self._away_since_s is None
        if self._away_since_s is not None:
            return False
        unwritten = self._record is not None and self._record != self._written
        waits_for_name = self._name_taken_since_s is not None
        return (unwritten and not waits_for_name) or (self._vacant and self._revision is not None)

    def _next_in_s(self) -> float:
        if self._name_taken_since_s is not None or self._lease is None:
            return _RETRY_S[0]
        return self._renewal_in_s()

    def _renewal_in_s(self) -> float:
        return self._office.renewed_s + self._ttl_s / 3 - self._clock()

    def _work(self) -> None:
        """One round: verify, renew, write what changed, stand for a vacant office."""
        if self._away_since_s is not None or self._verify:
            self._verify_registration()
        if self._lease is not None and self._renewal_in_s() <= 0:
            self._renew(self._lease)
        with self._news:
            record = self._record
        if record is not None and record != self._written:
            self._write(record)
        if self._vacant and self._revision is not None:
            self._campaign()

    def _write(self, record: NodeRecord) -> None:
        key = self._keys.node(record.node)
        if self._lease is None:
            sent_s = self._clock()
            self._lease = self._store.grant(self._ttl_s, timeout_s=self._call_timeout_s)
            self._office = replace(
                self._office, name=f"{record.node}/{record.incarnation}", renewed_s=sent_s
            )
            self._note_answer()
        compare = absent(key) if self._revision is None else Created(key, self._revision)
        try:
            result = self._store.transact(
                [compare], [Put(key, encode(record), self._lease)], timeout_s=self._call_timeout_s
            )
        except LeaseLost:
            self._lose_lease("the store ended it")
            return
        self._note_answer()
        if result.succeeded:
            first = self._revision is None
            self._revision = result.revision if first else self._revision
            self._written, self._name_taken_since_s = record, None
            if first and self._revision is not None:
                self._ear.enrolled(self._revision)
        elif self._revision is not None:
            self._lose_lease("the registration is gone")
        else:
            self._meet_namesake(record)

    def _meet_namesake(self, record: NodeRecord) -> None:
        """Somebody is registered under our name: ourselves, a former agent, or another host."""
        key = self._keys.node(record.node)
        entry = self._store.read(key, timeout_s=self._call_timeout_s).get(key)
        if entry is None:
            return  # it went meanwhile: the next round takes the name
        try:
            other = decode(entry.value, NodeRecord, source=key)
        except FormatError as error:
            self._ear.refused(error)
            return
        if other.incarnation == record.incarnation and entry.lease == self._lease:
            self._revision, self._written = entry.create_revision, other
            self._ear.enrolled(entry.create_revision)
            return
        now = self._clock()
        since_s = self._name_taken_since_s = self._name_taken_since_s or now
        if other.host != record.host or now - since_s > self._ttl_s + _NAME_MARGIN_S:
            message = f"node name {record.node!r} is taken by a live agent on {other.host}"
            self._ear.refused(UsageError(message, hint="--node-name ANOTHER"))
            with self._news:
                self._closing = True

    def _renew(self, lease: LeaseId) -> None:
        sent_s = self._clock()
        left_s = self._store.keep_alive(lease, timeout_s=self._call_timeout_s)
        self._note_answer()
        if left_s <= 0:
            self._lose_lease("it was not renewed in time")
        else:
            self._office = replace(self._office, renewed_s=sent_s)

    def _verify_registration(self) -> None:
        """After silence: see that our key is still there and is the one that we created."""
        record = self._written or self._record
        if record is None:
            return
        key = self._keys.node(record.node)
        view = self._store.read(key, self._keys.leader, timeout_s=self._call_timeout_s)
        self._verify = False
        self._note_answer()
        entry = view.get(key)
        if self._revision is not None and (
            entry is None or entry.create_revision != self._revision
        ):
            self._lose_lease("the store came back without the registration")
            return
        self._take_leader(view.get(self._keys.leader))

    def _lose_lease(self, reason: str) -> None:
        """Everything bound to the lease is gone; we wait for a fresh record to register with."""
        if self._revision is None:
            self._lease = None  # nothing was registered yet: the next round takes a new one
            return
        with self._news:
            self._lease = self._revision = self._written = self._record = None
            deposed = self._office.token is not None
            self._office = replace(self._office, token=None)
        if deposed:
            self._ear.deposed(f"the lease ended: {reason}")
        self._ear.lease_ended(reason)

    def _campaign(self) -> None:
        self._vacant = False
        if self._lease is None:
            return
        key = self._keys.leader
        try:
            result = self._store.transact(
                [absent(key)],
                [Put(key, self._office.name, self._lease)],
                timeout_s=self._call_timeout_s,
            )
        except LeaseLost:
            self._lose_lease("the store ended it")
            return
        self._note_answer()
        if result.succeeded:
            with self._news:
                self._office = replace(self._office, token=result.revision)
            self._ear.elected(result.revision)

    def _watch_clock(self) -> None:
        with self._news:
            term = election.watch_clock(
                self._office, self._clock(), ttl_s=self._ttl_s, margin_s=self._margin_s
            )
            self._office = term.office
        self._tell(term)

    def _tell(self, term: Term) -> None:
        if term.deposed:
            self._ear.deposed(term.deposed)
        if term.elected is not None:
            self._ear.elected(term.elected)

    def _note_away(self, error: StoreError) -> None:
        refuses = isinstance(error, StoreRefused | StoreExhausted)
        self._refusals = min(self._refusals + 1, _MOST_REFUSALS) if refuses else 0
        if self._away_since_s is None:
            self._away_since_s = self._heard_s
            self._ear.store_away(error)

    def _note_answer(self) -> None:
        self._heard_s = self._clock()
        if not self._refusals:
            self._note_back()  # else a whole round tells: one answer of several may be a refusal

    def _note_back(self) -> None:
        since_s, self._away_since_s = self._away_since_s, None
        if since_s is not None:
            self._ear.store_back(self._clock() - since_s)
