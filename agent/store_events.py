"""What every agent hears of its registration and its store, whatever kind of job it trains."""

import threading
import time
from collections.abc import Callable

import msgspec

from easyscale.errors import StoreError, StoreExhausted, StoreRefused


class LeaseEnded(msgspec.Struct, frozen=True, kw_only=True):
    """The registration ended although this agent lives: it registers anew."""

    reason: str


class StoreAway(msgspec.Struct, frozen=True, kw_only=True):
    """The store does not answer, or `refuses` in these words; training goes on, changes wait."""

    reason: str
    refuses: str = ""

    @classmethod
    def of(cls, error: StoreError) -> "StoreAway":
        is_answer = isinstance(error, StoreRefused | StoreExhausted)
        words = error.words or error.message
        return cls(reason=error.message, refuses=words if is_answer else "")

    def told(self, goes_on: str) -> str:
        """One line for people: what the store says, and what goes on all the same."""
        return f"etcd refuses: {self.refuses}; {goes_on}" if self.refuses else goes_on


class StoreBack(msgspec.Struct, frozen=True, kw_only=True):
    """The store answers again after `silent_s`."""

    silent_s: float


class Standing:
    """Whether the store serves, by what several roads to it say; told when that changes.

    A full store renews leases and answers reads, so the registration alone does not notice it.
    """

    def __init__(
        self,
        post: Callable[[StoreAway | StoreBack], None],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._post = post
        self._clock = clock
        self._lock = threading.Lock()
        self._away: set[str] = set()
        self._since_s = 0.0

    def away(self, road: str, event: StoreAway) -> None:
        """On this road the store serves no more."""
        with self._lock:
            if not self._away:
                self._since_s = self._clock()
                self._post(event)
            self._away.add(road)

    def back(self, road: str, *, silent_s: float = 0.0) -> None:
        """On this road it serves again, after at least `silent_s`."""
        with self._lock:
            if road not in self._away:
                return
            self._away.discard(road)
            now_s = self._clock()
            self._since_s = min(self._since_s, now_s - silent_s)
            if not self._away:
                self._post(StoreBack(silent_s=now_s - self._since_s))
