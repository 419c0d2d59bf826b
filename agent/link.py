"""The agent's link to the store: carries out store actions in order and brings back views.

While the store is away, or refuses, own writes wait here and nothing else does.
"""

import math
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import assert_never

from easyscale.agent import actions, events
from easyscale.agent.balance.keeping import read_profile
from easyscale.agent.code_check import CodeCheck
from easyscale.agent.job_terms import agree_on_job, fixed_values
from easyscale.agent.machine import followed_ranges
from easyscale.agent.opening import Opened, open_store
from easyscale.agent.settings import LaunchSettings
from easyscale.agent.snapshots import Catalogue
from easyscale.agent.store_events import LeaseEnded, Standing, StoreAway, StoreBack
from easyscale.agent.store_thread import CALL_TIMEOUT_S, Ear, Hold, StoreThread, WriteRoad
from easyscale.errors import (
    EasyScaleError,
    LeaseLost,
    StoreClosed,
    StoreError,
    TransactionInvalid,
)
from easyscale.rendezvous.keys import JobKeys
from easyscale.rendezvous.membership import Membership
from easyscale.rendezvous.store import Put, Range, View
from easyscale.rendezvous.view import JobView

StoreAction = (
    actions.Enrol
    | actions.Write
    | actions.Transact
    | actions.Campaign
    | actions.Resign
    | actions.Leave
)
_Order = StoreAction | events.Elected | events.Deposed


class StoreLink:
    """What the driver knows of the store. Its methods return at once; answers are events.

    The last four are the thread's (`store_thread.Work`).
    """

    def __init__(
        self,
        settings: LaunchSettings,
        catalogue: Catalogue,
        code: CodeCheck,
        *,
        post: Callable[[events.AgentEvent], None],
        tell: Callable[[str], None],
        fail: Callable[[EasyScaleError], None],
    ) -> None:
        self._settings = settings
        self._catalogue = catalogue
        self._code = code
        self._keys = JobKeys.of(settings.job_id)
        self._post = post
        self._tell = tell
        self._fail = fail
        self._writes: dict[str, actions.Write] = {}
        self._standing = Standing(self._hear_standing)
        self._road = WriteRoad(self._standing, asked_with=self._keys.progress)
        #: What no store would ever take, once told.
        self._told: set[str] = set()
        self._leads = False
        self._view: JobView | None = None
        #: What each followed range showed last.
        self._parts: dict[Range, View] = {}
        self._hold = Hold()
        self._thread: StoreThread[_Order] = StoreThread(self, name="store-link", fail=fail)

    @property
    def opened(self) -> Opened | None:
        return self._hold.opened

    @property
    def membership(self) -> Membership | None:
        return self._hold.membership

    def start(self) -> None:
        self._thread.start()

    def take(self, action: StoreAction) -> None:
        """Carry this out after those before it."""
        self._thread.order(action)

    def close(self, *, within_s: float | None = None) -> None:
        """Write what can still be written, then end watches, lease and server.

        After `within_s` the store is waited for no more: the lease then ends by itself.
        """
        ends_s = math.inf if within_s is None else time.monotonic() + within_s
        self._thread.close(within_s=ends_s - time.monotonic())
        # An etcd of this agent alone has nobody to wait for.
        serves = bool(self._settings.store.serve_at)
        linger_s = self._settings.timeouts.serve_linger_s if serves else 0.0
        left_s = max(0.0, ends_s - time.monotonic())
        self._hold.close(nodes=self._keys.nodes, linger_s=linger_s, within_s=left_s)

    # --- what the membership says --------------------------------------------------------------

    def _take_office(self, token: int | None, reason: str) -> None:
        if token is None:
            self._thread.order(events.Deposed(reason=reason))
        else:
            self._thread.order(events.Elected(token=token))

    def _hear_registration(self, event: events.Enrolled | LeaseEnded) -> None:
        if isinstance(event, LeaseEnded):
            with self._thread.news:
                kept = {key: write for key, write in self._writes.items() if not write.leased}
                self._writes = kept
        self._post(event)
        self._thread.write_soon()

    def _hear_standing(self, event: StoreAway | StoreBack) -> None:
        self._post(event)
        self._thread.write_soon()

    # --- the thread ----------------------------------------------------------------------------

    def open(self) -> None:
        started_s = time.monotonic()
        settings = self._settings
        self._hold.opened = opened = open_store(
            settings.store,
            self._tell,
            environment=settings.environment,
            meeting_timeout_s=settings.timeouts.meeting_timeout_s,
        )
        seconds = time.monotonic() - started_s
        if opened.warning:
            self._tell(opened.warning)
        spec = agree_on_job(opened.store, self._keys, settings)
        self._catalogue.refuse_other_values(fixed_values(settings))
        if note := self._code.agree(opened.store, self._keys):
            self._tell(note)
        self._catalogue.sweep(live=())
        self._hold.membership = Membership(
            opened.store,
            self._keys,
            Ear(
                post=self._hear_registration,
                standing=self._standing,
                enrolled_at=lambda revision: self._hear_registration(
                    events.Enrolled(create_revision=revision)
                ),
                took_office=self._take_office,
                fail=self._fail,
            ),
            ttl_s=settings.timeouts.lease_ttl_s,
            leader_margin_s=settings.timeouts.leader_margin_s,
        )
        self._post(events.JobOpened(spec=spec, store=str(opened.etcd), seconds=seconds))
        survey = self._catalogue.survey()
        for entry in survey.rejected:
            self._tell(f"snapshot {entry.name} is passed over: {entry.reason}")
        kept = read_profile(Path(settings.snapshot_dir))
        self._post(events.SnapshotsFound(records=survey.records, profile=kept))
        self._follow()

    def carry_out(self, order: _Order, /) -> None:
        membership = self._hold.membership
        assert membership is not None
        match order:
            case actions.Enrol(record=record):
                membership.enrol(record)
            case actions.Write(key=key):
                # The newest value of a key goes where the newest write stands.
                self._writes.pop(key, None)
                self._writes[key] = order
            case actions.Transact():
                self.write()
                self._post(self._try(order))  # what it meets is asked after by the next write
            case actions.Campaign():
                membership.stand()
            case actions.Resign():
                membership.withdraw()
            case actions.Leave(how=how):
                self.write()
                membership.leave(how)
            case events.Elected() | events.Deposed():
                self._leads = isinstance(order, events.Elected)
                self._post(order)
                self._follow()
            case _:
                assert_never(order)

    def write(self) -> bool:
        opened = self._hold.opened
        assert opened is not None
        try:
            self._write_all()
            self._road.ask_again(opened.store)
        except StoreClosed:
            raise
        except StoreError as error:
            self._road.bear(error)
        return not (self._writes or self._road.is_barred)

    def _write_all(self) -> None:
        opened, membership = self._hold.opened, self._hold.membership
        assert opened is not None
        assert membership is not None
        for key, write in tuple(self._writes.items()):
            lease = membership.lease if write.leased else None
            if write.leased and lease is None:
                continue
            try:
                put = Put(key, write.value, lease)
                opened.store.transact([], [put], timeout_s=CALL_TIMEOUT_S)
            except LeaseLost:
                continue  # the machine writes it again once we are registered again
            except TransactionInvalid as error:
                self._tell_once(key, error)
            with self._thread.news:
                if self._writes.get(key) is write:
                    del self._writes[key]

    def _tell_once(self, what: str, error: StoreError) -> None:
        if what not in self._told:
            self._told.add(what)
            self._tell(f"{what} cannot be written: {error.message}")

    def look(self) -> bool:
        """Take up what the watches brought, so that news costs etcd no read.

        A leader's watch covers everything at one revision, from a list made after its election on:
        news may be late, and whatever is written on it compares `head`. A follower's ranges are
        each at a revision of their own.
        """
        membership = self._hold.membership
        assert membership is not None
        with self._thread.news:
            parts = [self._parts.get(range_) for range_ in self._ranges()]
        complete = [part for part in parts if part is not None]
        if len(complete) == len(parts):
            view = View.union(complete)
            membership.see_leader(view.get(self._keys.leader))
            self._view = JobView.of(view, self._keys, before=self._view)
            self._post(events.Viewed(view=self._view, complete=self._leads))
        return True

    def _follow(self) -> None:
        """Watch what this agent must see: everything while it leads, else what concerns all."""
        self._hold.let_go()
        with self._thread.news:
            self._parts = {}
        self._view = None
        self._hold.follow({range_: partial(self._hear, range_) for range_ in self._ranges()})

    def _ranges(self) -> tuple[Range, ...]:
        return (self._keys.prefix,) if self._leads else followed_ranges(self._keys)

    def _hear(self, range_: Range, view: View) -> None:
        with self._thread.news:
            self._parts[range_] = view
            self._thread.see()

    def _try(self, action: actions.Transact) -> events.Transacted:
        opened = self._hold.opened
        assert opened is not None
        try:
            result = opened.store.transact(
                action.compares, action.operations, timeout_s=CALL_TIMEOUT_S
            )
        except TransactionInvalid as error:
            self._tell_once(action.name, error)
            return events.Transacted(name=action.name, succeeded=None)
        except StoreError as error:
            self._road.bear(error)
            return events.Transacted(name=action.name, succeeded=None)
        return events.Transacted(
            name=action.name, succeeded=result.succeeded, revision=result.revision
        )
