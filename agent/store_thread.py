"""The thread beside an agent's loop that works at its store: in order, and again where it failed.

    order -> carried out one after the other -> what waits is written -> what is new is looked at

While the store is away, what is to be written waits, and nothing else does.
"""

import contextlib
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from easyscale.agent.opening import Opened
from easyscale.agent.store_events import LeaseEnded, StoreAway, StoreBack
from easyscale.errors import EasyScaleError, StoreClosed, StoreError
from easyscale.rendezvous.membership import Membership
from easyscale.rendezvous.store import Range, View, Watch

CALL_TIMEOUT_S = 2.0
RETRY_S = 0.2
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
        self._has_unwritten = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def order(self, order: Order) -> None:
        """Carry this out after those before it."""
        with self.news:
            self._orders.append(order)
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
        except EasyScaleError as error:
            self._fail(error)
            return
        # A store that is away may be closed under what waits for it: the agent ends.
        with contextlib.suppress(StoreClosed):
            while self._wait():
                self._carry_out()
                self._look()
            self._carry_out()

    def _wait(self) -> bool:
        """Wait until there is something to do; False when the agent ends."""
        with self.news:
            while not (self._is_closing or self._orders or self._is_due):
                waits_s = [RETRY_S] if self._has_unwritten else []
                if self._is_new:
                    waits_s.append(self._looks_at_s - self._clock())
                if not self.news.wait(min(waits_s, default=None)) and self._has_unwritten:
                    break
            return not self._is_closing

    @property
    def _is_due(self) -> bool:
        return self._is_new and self._clock() >= self._looks_at_s

    def _carry_out(self) -> None:
        with self.news:
            orders = tuple(self._orders)
            self._orders.clear()
        for order in orders:
            self._work.carry_out(order)
        self._has_unwritten = not self._work.write()

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

    post: Callable[[LeaseEnded | StoreAway | StoreBack], None]
    #: The registration stands, since this revision.
    enrolled_at: Callable[[int], None]
    #: The token while this agent leads; None: it leads no more, for this reason.
    took_office: Callable[[int | None, str], None]
    fail: Callable[[EasyScaleError], None]

    def enrolled(self, create_revision: int) -> None:
        self.enrolled_at(create_revision)

    def lease_ended(self, reason: str) -> None:
        self.post(LeaseEnded(reason=reason))

    def store_away(self, reason: str) -> None:
        self.post(StoreAway(reason=reason))

    def store_back(self, silent_s: float) -> None:
        self.post(StoreBack(silent_s=silent_s))

    def elected(self, token: int) -> None:
        self.took_office(token, "")

    def deposed(self, reason: str) -> None:
        self.took_office(None, reason)

    def refused(self, error: EasyScaleError) -> None:
        self.fail(error)
