"""The thread beside an agent's loop that works at its store: in order, and again where it failed.

    order -> carried out one after the other -> what waits is written -> what is new is looked at

While the store is away, or refuses, what is to be written waits, and nothing else does.
"""

import contextlib
import math
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from easyscale.agent.opening import Opened
from easyscale.agent.store_events import LeaseEnded, Standing, StoreAway
from easyscale.errors import (
    EasyScaleError,
    StoreClosed,
    StoreError,
    StoreExhausted,
    StoreRefused,
    ThreadBroke,
)
from easyscale.rendezvous.membership import Membership
from easyscale.rendezvous.store import Created, Put, Range, Store, View, Watch

CALL_TIMEOUT_S = 2.0
RETRY_S = 0.2
#: What could not be written is tried again after about twice as long each time, up to this.
LONGEST_RETRY_S = 2.0
_MOST_DOUBLINGS = 8
#: No key was ever created then.
_NEVER = -1
#: After a look nothing is looked at for as many times as long as that took: what a thousand agents
#: write in one moment is seen in a few looks, and who follows few keys never notices.
LOOK_PAUSE = 3.0
LONGEST_PAUSE_S = 0.2
_CLOSE_TIMEOUT_S = 3.0

Order_contra = TypeVar("Order_contra", contravariant=True)
Order = TypeVar("Order")


class Work(Protocol[Order_contra]):
    """What is done at a store; everything is called from the thread."""

    def open(self) -> None:
        """Come to the store; raises EasyScaleError for what ends the launch."""

    def carry_out(self, order: Order_contra, /) -> None: ...

    def write(self) -> bool:
        """Write what waits; False: something still does."""

    def look(self) -> bool:
        """Bring what the store shows; False: it did not answer."""


class StoreThread(Generic[Order]):
    """Orders come from any thread; `news` guards whatever its owner shares with it."""

    def __init__(
        self,
        work: Work[Order],
        *,
        name: str,
        fail: Callable[[EasyScaleError], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.news = threading.Condition()
        self._work = work
        self._fail = fail
        self._clock = clock
        #: From here on it may look again.
        self._looks_at_s = 0.0
        self._orders: deque[Order] = deque()
        self._is_new = False
        self._is_closing = False
        #: Attempts in a row that left something unwritten, and when the next one is due.
        self._unwritten = 0
        self._writes_at_s = 0.0
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def order(self, order: Order) -> None:
        """Carry this out after those before it."""
        with self.news:
            self._orders.append(order)
            self.news.notify()

    def write_soon(self) -> None:
        """What could not be written may be written now."""
        with self.news:
            self._writes_at_s = self._clock()
            self.news.notify()

    def see(self) -> None:
        """There is something new to look at."""
        with self.news:
            self._is_new = True
            self.news.notify()

    def close(self, *, within_s: float = _CLOSE_TIMEOUT_S) -> None:
        """Carry out and write what can still be."""
        with self.news:
            self._is_closing = True
            self.news.notify()
        if self._thread.is_alive():
            self._thread.join(timeout=min(within_s, _CLOSE_TIMEOUT_S))

    def _run(self) -> None:
        try:
            self._work.open()
            while self._wait():
                self._carry_out()
                self._look()
            self._carry_out()
        except StoreClosed:
            return  # a store that is away may be closed under what waits for it: the agent ends
        except Exception as error:
            self._fail(ThreadBroke.of(error, name=self._thread.name))
            if not isinstance(error, EasyScaleError):
                raise

    def _wait(self) -> bool:
        """Wait until there is something to do; False when the agent ends."""
        with self.news:
            while not (self._is_closing or self._orders or self._is_due or self._is_write_due):
                waits_s = [self._writes_at_s - self._clock()] if self._unwritten else []
                if self._is_new:
                    waits_s.append(self._looks_at_s - self._clock())
                self.news.wait(max(0.0, min(waits_s)) if waits_s else None)
            return not self._is_closing

    @property
    def _is_due(self) -> bool:
        return self._is_new and self._clock() >= self._looks_at_s

    @property
    def _is_write_due(self) -> bool:
        return self._unwritten > 0 and self._clock() >= self._writes_at_s

    def _carry_out(self) -> None:
        with self.news:
            orders = tuple(self._orders)
            self._orders.clear()
            is_due = bool(orders) or self._is_write_due or self._is_closing
        for order in orders:
            self._work.carry_out(order)
        if is_due:
            self._write()

    def _write(self) -> None:
        if self._work.write():
            self._unwritten = 0
            return
        self._unwritten = min(self._unwritten + 1, _MOST_DOUBLINGS)
        longest_s = min(LONGEST_RETRY_S, RETRY_S * 2.0**self._unwritten)
        # Spread, so that a thousand agents do not come back at once.
        pause_s = random.uniform(min(RETRY_S, longest_s), longest_s)  # noqa: S311 - guards nothing
        self._writes_at_s = self._clock() + pause_s

    def _look(self) -> None:
        if not self._is_due:
            return
        self._is_new = False
        began_s = self._clock()
        if not self._work.look():
            self._is_new = True
            time.sleep(RETRY_S)
            return
        ended_s = self._clock()
        self._looks_at_s = ended_s + min(LOOK_PAUSE * (ended_s - began_s), LONGEST_PAUSE_S)


class WriteRoad:
    """Whether the store takes what this agent writes: a full one answers reads, renews leases."""

    def __init__(self, standing: Standing, *, asked_with: str) -> None:
        self._standing = standing
        self._key = asked_with
        self.is_barred = False

    def bear(self, error: StoreError) -> None:
        """Nothing that a store says once it was open ends this agent: people hear it, once.

        That it does not answer is for the registration to say.
        """
        if isinstance(error, StoreRefused | StoreExhausted):
            self.is_barred = True
            self._standing.away("writes", StoreAway.of(error))

    def ask_again(self, store: Store) -> None:
        """See whether the store takes writes again, by one that changes nothing."""
        if self.is_barred:
            store.transact(
                [Created(self._key, _NEVER)], [Put(self._key, "")], timeout_s=CALL_TIMEOUT_S
            )
            self.is_barred = False
            self._standing.back("writes")


@dataclass(slots=True)
class Hold:
    """What an agent holds at its store, let go of in one order."""

    opened: Opened | None = None
    membership: Membership | None = None
    _watches: list[Watch] = field(default_factory=list)

    def follow(self, heard: Mapping[Range, Callable[[View], None]]) -> None:
        """Watch these ranges, each for who hears it."""
        assert self.opened is not None
        self._watches = [
            self.opened.store.watch(range_, deliver=deliver, lost=lambda _: None)
            for range_, deliver in heard.items()
        ]

    def close(self, *, nodes: str, linger_s: float, within_s: float = math.inf) -> None:
        """End registration, watches, store and server; one that serves others outlives them."""
        ends_s = time.monotonic() + within_s
        if self.membership is not None:
            self.membership.close(within_s=within_s)
        self.let_go()
        if self.opened is None:
            return
        if self.opened.server is not None and linger_s:
            self._serve_the_last(nodes, min(linger_s, ends_s - time.monotonic()))
        self.opened.store.close()
        if self.opened.server is not None:
            self.opened.server.stop()

    def _serve_the_last(self, nodes: str, linger_s: float) -> None:
        """Serve until the others have left too: they read the job's outcome here."""
        assert self.opened is not None
        deadline_s = time.monotonic() + linger_s
        with contextlib.suppress(StoreError):
            while time.monotonic() < deadline_s:
                if not self.opened.store.read(nodes, timeout_s=CALL_TIMEOUT_S).entries:
                    return
                time.sleep(RETRY_S)

    def let_go(self) -> None:
        """Watch nothing any more."""
        for watch in self._watches:
            watch.close()
        self._watches = []


@dataclass(frozen=True, slots=True)
class Ear:
    """Turns what a membership tells into events of the agent's loop."""

    post: Callable[[LeaseEnded], None]
    standing: Standing
    #: The registration stands, since this revision.
    enrolled_at: Callable[[int], None]
    #: The token while this agent leads; None: it leads no more, for this reason.
    took_office: Callable[[int | None, str], None]
    fail: Callable[[EasyScaleError], None]

    def enrolled(self, create_revision: int) -> None:
        self.enrolled_at(create_revision)

    def lease_ended(self, reason: str) -> None:
        self.post(LeaseEnded(reason=reason))

    def store_away(self, error: StoreError) -> None:
        self.standing.away("registration", StoreAway.of(error))

    def store_back(self, silent_s: float) -> None:
        self.standing.back("registration", silent_s=silent_s)

    def elected(self, token: int) -> None:
        self.took_office(token, "")

    def deposed(self, reason: str) -> None:
        self.took_office(None, reason)

    def refused(self, error: EasyScaleError) -> None:
        self.fail(error)
