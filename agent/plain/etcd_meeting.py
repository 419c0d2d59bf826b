"""Where several nodes of a plain or packed job meet: etcd, through one thread.

The thread opens the store and carries out writes in order; it brings back what the store shows.
While the store is away reports wait here and workers go on.
"""

import contextlib
import secrets
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple, assert_never

import msgspec

from easyscale.agent.opening import Opened, open_store
from easyscale.agent.plain import events, records
from easyscale.agent.plain.actions import Ask, Settle, Write
from easyscale.agent.plain.meeting import Where
from easyscale.agent.plain.records import PlainKeys
from easyscale.agent.plain.settings import PlainSettings
from easyscale.agent.plain.values import Offer, Outcome, Report, Sight, Terms
from easyscale.agent.processes.guard import LeaseGuard
from easyscale.agent.settings import Timeouts
from easyscale.agent.store_events import Standing
from easyscale.agent.store_thread import (
    CALL_TIMEOUT_S,
    RETRY_S,
    Ear,
    Hold,
    StoreThread,
    WriteRoad,
)
from easyscale.errors import (
    EasyScaleError,
    ExitCode,
    OutcomeUnknown,
    StoreError,
    StoreRefused,
)
from easyscale.model import Wish, encode
from easyscale.rendezvous.endpoints import own_address_towards
from easyscale.rendezvous.membership import Membership
from easyscale.rendezvous.store import MAX_OPERATIONS, Delete, Operation, Put, Store

_READ_TIMEOUT_S = 1.0
#: A stall of a busy machine must not look like its end: a restart costs more than the wait.
_LEASE_TTL_S = 10
_LEADER_MARGIN_S = 1.0
#: Nodes that come so late find a job that has finished, and leave with 0; or know why it failed.
_FINISHED_TTL_S = 30
_FAILED_TTL_S = 600
#: The agents of a job that has ended leave within this time.
_LEAVING_S = 20.0


class _Office(NamedTuple):
    """The leader's token while this agent leads."""

    token: int | None


_Order = Offer | Write | Report | Ask | Settle | _Office


class EtcdMeeting:
    """The meeting of several nodes. Its methods return at once; answers are events.

    The last four are the thread's (`store_thread.Work`).
    """

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
        self._token: int | None = None
        #: Key -> what goes there; None: it goes away.
        self._unwritten: dict[str, str | None] = {}
        self._standing = Standing(post)
        self._road = WriteRoad(self._standing, asked_with=self._keys.common.progress)
        self._hold = Hold()
        self._guard: LeaseGuard | None = None
        self._thread: StoreThread[_Order] = StoreThread(self, name="plain-meeting", fail=fail)

    def start(self) -> None:
        self._thread.start()

    def offer(self, offer: Offer) -> None:
        self._thread.order(offer)

    def decide(self, decision: Write) -> None:
        self._thread.order(decision)

    def publish(self, report: Report) -> None:
        self._thread.order(report)

    def ask(self, asked: Ask) -> None:
        self._thread.order(asked)

    def settle(self, settled: Settle) -> None:
        self._thread.order(settled)

    def where(self) -> Where | None:
        opened = self._hold.opened
        if opened is None:
            return None
        return Where(endpoints=str(opened.etcd), is_embedded=opened.server is not None)

    def whole(self) -> Sight | None:
        """The job as the store has it now; None where it does not answer."""
        opened = self._hold.opened
        if opened is None:
            return None
        try:
            view = opened.store.read(self._keys.prefix, timeout_s=_READ_TIMEOUT_S)
        except StoreError:
            return None
        return records.sight_of(view, self._keys)

    def close(self) -> None:
        """Write what can still be written, then let go of everything."""
        self._thread.close()
        if self._hold.membership is not None:
            self._hold.membership.leave("its agent has ended")
        self._hold.close(nodes=self._keys.common.nodes, linger_s=Timeouts().serve_linger_s)
        if self._guard is not None:
            self._guard.close()

    # --- the thread ----------------------------------------------------------------------------

    def open(self) -> None:
        began_s = time.monotonic()
        settings = self._settings
        self._hold.opened = opened = open_store(
            settings.store,
            self._tell,
            environment=settings.environment,
            meeting_timeout_s=settings.join_timeout_s,
        )
        if opened.warning:
            self._tell(opened.warning)
        found = self._agree(opened.store)
        if isinstance(found, Outcome):
            # Without taking part: the job is over for everybody.
            self._post(events.Seen(sight=Sight(outcome=found), leads=False))
            return
        self._hold.membership = Membership(
            opened.store,
            self._keys.common,
            Ear(
                post=self._post,
                standing=self._standing,
                enrolled_at=lambda _: self._hold_guard(),
                took_office=lambda token, _: self._thread.order(_Office(token)),
                fail=self._fail,
            ),
            ttl_s=_LEASE_TTL_S,
            leader_margin_s=_LEADER_MARGIN_S,
        )
        self._post(
            events.Met(
                store=str(opened.etcd),
                seconds=time.monotonic() - began_s,
                address=own_address_towards(opened.etcd.endpoints),
                token=found.token,
            )
        )
        self._start_guard(opened)
        self._follow()

    def _agree(self, store: Store) -> Terms | Outcome:
        """Find the job's terms, or begin it anew; the outcome where it has just finished."""
        deadline = time.monotonic() + _LEAVING_S
        keys = self._keys
        while True:
            view = store.read(keys.prefix, timeout_s=CALL_TIMEOUT_S)
            living = any(view.under(keys.common.nodes))
            sight = records.sight_of(view, keys)
            ended, stands = sight.outcome, sight.terms
            if ended is not None and ended.is_finished:
                return ended
            # Nothing was decided in it yet: its nodes are about to register.
            if stands is not None and ended is None and (living or sight.round is None):
                records.refuse_other_terms(self._settings.job_id, stands=stands, asked=self._terms)
                self._forget_old_wishes(store, sight.wishes)
                return stands
            if ended is None or not living:
                terms = msgspec.structs.replace(self._terms, token=secrets.token_hex(16))
                compares, operations = records.begin_anew(view, keys, terms)
                with contextlib.suppress(OutcomeUnknown):
                    store.transact(compares, operations, timeout_s=CALL_TIMEOUT_S)
            elif time.monotonic() > deadline:
                raise StoreRefused(
                    f"job {self._settings.job_id!r} has ended, and its nodes do not leave",
                    hint="another --rdzv-id",
                )
            else:
                time.sleep(RETRY_S)

    def _forget_old_wishes(self, store: Store, wishes: Mapping[str, Wish]) -> None:
        """What somebody asked of an earlier agent of this name is no word to this one."""
        deletes: list[Operation] = [
            Delete(self._keys.common.wish(each))
            for each, wish in sorted(wishes.items())
            if wish.node == self._settings.node_name
        ]
        for first in range(0, len(deletes), MAX_OPERATIONS):
            batch = deletes[first : first + MAX_OPERATIONS]
            with contextlib.suppress(OutcomeUnknown):
                store.transact([], batch, timeout_s=CALL_TIMEOUT_S)

    def carry_out(self, order: _Order, /) -> None:
        membership = self._hold.membership
        match order:
            case Offer():
                if membership is not None:
                    membership.enrol(order)
                    membership.stand()
            case Report(round=number):
                key = self._keys.report(number, self._settings.node_name)
                self._unwritten[key] = encode(order)
            case Ask(wish_id=wish_id, wish=wish):
                self._unwritten[self._keys.common.wish(wish_id)] = encode(wish)
            case Settle(wish_id=wish_id, refused=refused):
                value = None if refused is None else encode(refused)
                self._unwritten[self._keys.common.wish(wish_id)] = value
            case Write():
                self._decide(order)
            case _Office(token=token):
                self._token = token
                self._follow()
                self._thread.see()
            case _:
                assert_never(order)

    def write(self) -> bool:
        opened = self._hold.opened
        assert opened is not None
        try:
            for key, value in tuple(self._unwritten.items()):
                operation = Delete(key) if value is None else Put(key, value)
                opened.store.transact([], [operation], timeout_s=CALL_TIMEOUT_S)
                del self._unwritten[key]
            self._road.ask_again(opened.store)
        except StoreError as error:
            self._road.bear(error)
            return False
        return True

    def look(self) -> bool:
        opened, membership = self._hold.opened, self._hold.membership
        if opened is None or membership is None:
            return True
        leads = self._token is not None
        try:
            # One read of all ranges brings them as they were at one revision.
            view = opened.store.read(*self._ranges(), timeout_s=CALL_TIMEOUT_S)
        except StoreError:
            return False
        membership.see_leader(view.get(self._keys.common.leader))
        self._post(events.Seen(sight=records.sight_of(view, self._keys), leads=leads))
        return True

    def _decide(self, decision: Write) -> None:
        token, opened = self._token, self._hold.opened
        if token is None or opened is None:
            return
        lease = None
        try:
            if isinstance(decision.value, Outcome):
                # On a lease of its own: it outlives the agents, and not for ever.
                is_done = decision.value.exit_code == ExitCode.DONE
                ttl_s = _FINISHED_TTL_S if is_done else _FAILED_TTL_S
                lease = opened.store.grant(ttl_s, timeout_s=CALL_TIMEOUT_S)
            compares, operations = records.put(self._keys, decision, token=token, lease=lease)
            opened.store.transact(compares, operations, timeout_s=CALL_TIMEOUT_S)
        except StoreError as error:
            self._road.bear(error)  # one that cannot be written now is decided anew

    def _follow(self) -> None:
        """Watch everything while this agent leads, else what the leader decides."""
        self._hold.let_go()
        self._hold.follow({range_: lambda _: self._thread.see() for range_ in self._ranges()})

    def _ranges(self) -> tuple[str, ...]:
        leads = self._token is not None
        return tuple(dict.fromkeys((*self._keys.ranges(leads=leads), self._keys.common.leader)))

    # --- the lease guard -----------------------------------------------------------------------

    def _start_guard(self, opened: Opened) -> None:
        """An etcd of our own ends with us: then nobody is left to be told."""
        if opened.server is None:
            self._guard = LeaseGuard.start(
                opened.etcd,
                self._keys.common,
                node=self._settings.node_name,
                incarnation=self._incarnation,
            )
            self._guard.watch(self._keeper_pid)

    def _hold_guard(self) -> None:
        membership = self._hold.membership
        if self._guard is not None and membership is not None and membership.lease:
            self._guard.hold(membership.lease)
