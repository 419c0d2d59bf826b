"""Where several nodes of a plain or packed job meet: etcd, through one thread.

The thread opens the store and carries out writes in order; it brings back what the store shows.
While the store is away reports wait here and workers go on.
"""

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import assert_never

from easyscale.agent.link import Opened, open_store
from easyscale.agent.plain import events, records
from easyscale.agent.plain.actions import Write
from easyscale.agent.plain.records import PlainKeys
from easyscale.agent.plain.settings import PlainSettings
from easyscale.agent.plain.values import Offer, Outcome, Report, Sight, Terms
from easyscale.agent.processes.guard import LeaseGuard
from easyscale.agent.settings import LaunchSettings, Timeouts
from easyscale.errors import (
    EasyScaleError,
    ExitCode,
    OutcomeUnknown,
    StoreError,
    StoreRefused,
)
from easyscale.messages import ScriptTarget
from easyscale.model import decode, encode
from easyscale.rendezvous.endpoints import own_address_towards
from easyscale.rendezvous.membership import Membership
from easyscale.rendezvous.store import Put, Store, View, Watch

_CALL_TIMEOUT_S = 2.0
_RETRY_S = 0.2
_CLOSE_TIMEOUT_S = 3.0
#: A stall of a busy machine must not look like its end: a restart costs more than the wait.
_LEASE_TTL_S = 10
_LEADER_MARGIN_S = 1.0
#: Nodes that come so late find a job that has finished, and leave with 0; or know why it failed.
_FINISHED_TTL_S = 30
_FAILED_TTL_S = 600
#: The agents of a job that has ended leave within this time.
_LEAVING_S = 20.0

Order = Offer | Write | Report


def as_elastic(settings: PlainSettings) -> LaunchSettings:
    """What opening a store and claiming a name ask of any launch."""
    return LaunchSettings(
        job_id=settings.job_id,
        node_name=settings.node_name,
        node_is_chosen=settings.node_is_chosen,
        script=ScriptTarget.of(settings.script, is_module=True, arguments=()),
        working_directory=settings.working_directory,
        environment={},
        logical_workers=settings.logical_workers or 1,
        store=settings.store,
        snapshot_dir="",
        log_dir="",
        timeouts=Timeouts(meeting_timeout_s=settings.join_timeout_s),
    )


class EtcdMeeting:
    """The meeting of several nodes. Every method returns at once; answers are events."""

    def __init__(
        self,
        settings: PlainSettings,
        terms: Terms,
        *,
        incarnation: str,
        keeper_pid: int,
        post: Callable[[events.PlainEvent], None],
        tell: Callable[[str], None],
        fail: Callable[[EasyScaleError], None],
    ) -> None:
        self._settings = settings
        self._terms = terms
        self._incarnation = incarnation
        self._keeper_pid = keeper_pid
        self._keys = PlainKeys(settings.job_id)
        self._post = post
        self._tell = tell
        self._fail = fail
        self._news = threading.Condition()
        self._orders: deque[Order] = deque()
        #: The leader's token while this agent leads.
        self._token: int | None = None
        self._office_changed = False
        self._view_is_due = False
        self._unwritten: dict[str, Report] = {}
        self._watches: list[Watch] = []
        self._is_closing = False
        self._opened: Opened | None = None
        self._membership: Membership | None = None
        self._guard: LeaseGuard | None = None
        self._thread = threading.Thread(target=self._run, name="plain-meeting", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def offer(self, offer: Offer) -> None:
        self._order(offer)

    def write(self, decision: Write) -> None:
        self._order(decision)

    def publish(self, report: Report) -> None:
        self._order(report)

    def close(self) -> None:
        """Write what can still be written, then let go of everything."""
        with self._news:
            self._is_closing = True
            self._news.notify()
        if self._thread.is_alive():
            self._thread.join(timeout=_CLOSE_TIMEOUT_S)
        if self._membership is not None:
            self._membership.leave("its agent has ended")
            self._membership.close()
        for watch in self._watches:
            watch.close()
        if self._opened is not None:
            if self._opened.server is not None:
                self._serve_the_last(self._opened.store)
            self._opened.store.close()
            if self._opened.server is not None:
                self._opened.server.stop()
        if self._guard is not None:
            self._guard.close()

    def _serve_the_last(self, store: Store) -> None:
        """Serve until the others have left too: they read the job's outcome here."""
        deadline_s = time.monotonic() + Timeouts().serve_linger_s
        with contextlib.suppress(StoreError):
            while time.monotonic() < deadline_s:
                if not store.read(self._keys.common.nodes, timeout_s=_CALL_TIMEOUT_S).entries:
                    return
                time.sleep(_RETRY_S)

    def _order(self, order: Order) -> None:
        with self._news:
            self._orders.append(order)
            self._news.notify()

    # --- the thread ----------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._open()
        except EasyScaleError as error:
            self._fail(error)
            return
        while self._wait():
            self._take_office()
            for order in self._take_orders():
                self._carry_out(order)
            self._write_reports()
            self._bring_view()
        for order in self._take_orders():
            self._carry_out(order)
        self._write_reports()

    def _wait(self) -> bool:
        with self._news:
            self._news.wait_for(
                lambda: (
                    self._is_closing or self._orders or self._view_is_due or self._office_changed
                ),
                timeout=_RETRY_S if self._unwritten else None,
            )
            return not self._is_closing

    def _take_orders(self) -> tuple[Order, ...]:
        with self._news:
            taken = tuple(self._orders)
            self._orders.clear()
            return taken

    def _open(self) -> None:
        began_s = time.monotonic()
        self._opened = opened = open_store(as_elastic(self._settings), self._tell)
        if opened.warning:
            self._tell(opened.warning)
        finished = self._agree(opened.store)
        if finished is not None:
            # Without taking part: the job is over for everybody.
            self._post(events.Seen(sight=Sight(outcome=finished), leads=False))
            return
        self._membership = Membership(
            opened.store,
            self._keys.common,
            _Ear(self),
            ttl_s=_LEASE_TTL_S,
            leader_margin_s=_LEADER_MARGIN_S,
        )
        self._post(
            events.Met(
                store=str(opened.etcd),
                seconds=time.monotonic() - began_s,
                address=own_address_towards(opened.etcd.endpoints),
            )
        )
        if opened.server is None:
            self._guard = LeaseGuard.start(
                opened.etcd,
                self._keys.common,
                node=self._settings.node_name,
                incarnation=self._incarnation,
            )
            self._guard.watch(self._keeper_pid)
        self._follow()

    def _agree(self, store: Store) -> Outcome | None:
        """Find the job's terms, or begin it anew; the outcome where it has just finished."""
        deadline = time.monotonic() + _LEAVING_S
        keys = self._keys
        while True:
            view = store.read(keys.prefix, timeout_s=_CALL_TIMEOUT_S)
            living = any(view.under(keys.common.nodes))
            ended = records.sight_of(view, keys).outcome
            if ended is not None and ended.exit_code == ExitCode.DONE:
                return ended
            entry = view.get(keys.terms)
            # Nothing was decided in it yet: its nodes are about to register.
            is_new = view.get(keys.round) is None
            if entry is not None and ended is None and (living or is_new):
                stands = decode(entry.value, Terms, source=entry.key)
                records.refuse_other_terms(self._settings.job_id, stands=stands, asked=self._terms)
                return None
            if ended is None or not living:
                compares, operations = records.begin_anew(view, keys, self._terms)
                with contextlib.suppress(OutcomeUnknown):
                    store.transact(compares, operations, timeout_s=_CALL_TIMEOUT_S)
            elif time.monotonic() > deadline:
                raise StoreRefused(
                    f"job {self._settings.job_id!r} has ended, and its nodes do not leave",
                    hint="another --rdzv-id",
                )
            else:
                time.sleep(_RETRY_S)

    def _follow(self) -> None:
        """Watch everything while this agent leads, else what the leader decides."""
        assert self._opened is not None
        for watch in self._watches:
            watch.close()
        ranges = (*self._keys.ranges(leads=self._token is not None), self._keys.common.leader)
        self._watches = [
            self._opened.store.watch(range_, deliver=self._hear, lost=lambda _: None)
            for range_ in dict.fromkeys(ranges)
        ]

    def _hear(self, view: View) -> None:
        del view  # one read of all ranges brings them as they were at one revision
        with self._news:
            self._view_is_due = True
            self._news.notify()

    def _take_office(self) -> None:
        with self._news:
            changed, self._office_changed = self._office_changed, False
        if changed:
            self._follow()

    def _carry_out(self, order: Order) -> None:
        match order:
            case Offer():
                if self._membership is not None:
                    self._membership.enrol(order)
                    self._membership.stand()
            case Report():
                self._unwritten[self._keys.report(order.round, self._settings.node_name)] = order
            case Write():
                self._decide(order)
            case _:
                assert_never(order)

    def _decide(self, decision: Write) -> None:
        token, opened = self._token, self._opened
        if token is None or opened is None:
            return
        lease = None
        # One that cannot be written now is decided anew.
        with contextlib.suppress(StoreError):
            if isinstance(decision.value, Outcome):
                # On a lease of its own: it outlives the agents, and not for ever.
                is_done = decision.value.exit_code == ExitCode.DONE
                ttl_s = _FINISHED_TTL_S if is_done else _FAILED_TTL_S
                lease = opened.store.grant(ttl_s, timeout_s=_CALL_TIMEOUT_S)
            compares, operations = records.put(self._keys, decision, token=token, lease=lease)
            opened.store.transact(compares, operations, timeout_s=_CALL_TIMEOUT_S)

    def _write_reports(self) -> None:
        if self._opened is None:
            return
        for key, report in tuple(self._unwritten.items()):
            try:
                self._opened.store.transact(
                    [], [Put(key, encode(report))], timeout_s=_CALL_TIMEOUT_S
                )
            except StoreError:
                return
            del self._unwritten[key]

    def _bring_view(self) -> None:
        if not self._view_is_due or self._opened is None or self._membership is None:
            return
        self._view_is_due = False
        leads = self._token is not None
        ranges = dict.fromkeys((*self._keys.ranges(leads=leads), self._keys.common.leader))
        try:
            view = self._opened.store.read(*ranges, timeout_s=_CALL_TIMEOUT_S)
        except StoreError:
            self._view_is_due = True
            time.sleep(_RETRY_S)
            return
        self._membership.see_leader(view.get(self._keys.common.leader))
        self._post(events.Seen(sight=records.sight_of(view, self._keys), leads=leads))

    # --- what the membership says --------------------------------------------------------------

    def enrolled(self) -> None:
        if self._guard is not None and self._membership is not None and self._membership.lease:
            self._guard.hold(self._membership.lease)

    def lead(self, token: int | None) -> None:
        with self._news:
            self._token = token
            self._office_changed = self._view_is_due = True
            self._news.notify()

    def post(self, event: events.PlainEvent) -> None:
        self._post(event)

    def refuse(self, error: EasyScaleError) -> None:
        self._fail(error)


class _Ear:
    """Turns what the membership tells into orders and events."""

    def __init__(self, meeting: EtcdMeeting) -> None:
        self._meeting = meeting

    def enrolled(self, create_revision: int) -> None:
        del create_revision
        self._meeting.enrolled()

    def lease_ended(self, reason: str) -> None:
        self._meeting.post(events.LeaseEnded(reason=reason))

    def store_away(self, reason: str) -> None:
        self._meeting.post(events.StoreAway(reason=reason))

    def store_back(self, silent_s: float) -> None:
        self._meeting.post(events.StoreBack(silent_s=silent_s))

    def elected(self, token: int) -> None:
        self._meeting.lead(token)

    def deposed(self, reason: str) -> None:
        del reason
        self._meeting.lead(None)

    def refused(self, error: EasyScaleError) -> None:
        self._meeting.refuse(error)
