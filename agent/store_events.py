"""What every agent hears of its registration and its store, whatever kind of job it trains."""

import msgspec


class LeaseEnded(msgspec.Struct, frozen=True, kw_only=True):
    """The registration ended although this agent lives: it registers anew."""

    reason: str


class StoreAway(msgspec.Struct, frozen=True, kw_only=True):
    """The store does not answer; training goes on, changes wait."""

    reason: str


class StoreBack(msgspec.Struct, frozen=True, kw_only=True):
    """The store answers again after `silent_s`."""

    silent_s: float
