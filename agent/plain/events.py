"""Everything that can happen to an agent of a plain or packed job, as one closed union."""

import msgspec

from easyscale.agent.plain.values import Fault, Sight


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """The job as it is where its nodes meet; `leads`: this agent decides what follows."""

    sight: Sight
    leads: bool


class Met(msgspec.Struct, frozen=True, kw_only=True):
    """The store is there and this node is registered."""

    store: str
    seconds: float
    #: What others connect to on this node.
    address: str


class WorkerStarted(msgspec.Struct, frozen=True, kw_only=True):
    round: int
    local_rank: int
    pid: int


class WorkerExited(msgspec.Struct, frozen=True, kw_only=True):
    """A worker and all below it have ended, and all its output is delivered."""

    round: int
    local_rank: int
    #: How it failed; None where it ended with 0.
    fault: Fault | None


class Signalled(msgspec.Struct, frozen=True, kw_only=True):
    """The agent was sent a signal."""

    number: int


class SlotsChanged(msgspec.Struct, frozen=True, kw_only=True):
    """The node offers other slots from now on."""

    places: tuple[str, ...]
    reason: str


class StoreAway(msgspec.Struct, frozen=True, kw_only=True):
    reason: str


class LeaseEnded(msgspec.Struct, frozen=True, kw_only=True):
    """The registration of this node ended although it lives."""

    reason: str


class StoreBack(msgspec.Struct, frozen=True, kw_only=True):
    silent_s: float


class Ticked(msgspec.Struct, frozen=True, kw_only=True):
    """Time has passed."""


PlainEvent = (
    Seen
    | Met
    | WorkerStarted
    | WorkerExited
    | Signalled
    | SlotsChanged
    | StoreAway
    | LeaseEnded
    | StoreBack
    | Ticked
)
