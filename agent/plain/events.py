"""Everything that can happen to an agent of a plain or packed job, as one closed union."""

import msgspec

from easyscale.agent import store_events
from easyscale.agent.plain.values import Fault, Sight
from easyscale.model import Wish


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
    #: What lets the job's agents and tools talk to each other; empty: nobody elsewhere may ask.
    token: str = ""


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
    #: The wish that this does, if it came as one.
    wish_id: str = ""


class SlotsRefused(msgspec.Struct, frozen=True, kw_only=True):
    """The slots that a wish named are not on this node."""

    wish_id: str
    reason: str


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """Somebody on this machine asks something of the job."""

    wish_id: str
    wish: Wish


# What every agent hears of its registration and its store.
LeaseEnded = store_events.LeaseEnded
StoreAway = store_events.StoreAway
StoreBack = store_events.StoreBack


class Ticked(msgspec.Struct, frozen=True, kw_only=True):
    """Time has passed."""


PlainEvent = (
    Seen
    | Met
    | WorkerStarted
    | WorkerExited
    | Signalled
    | SlotsChanged
    | SlotsRefused
    | Asked
    | StoreAway
    | LeaseEnded
    | StoreBack
    | Ticked
)
