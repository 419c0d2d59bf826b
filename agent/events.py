"""Everything that can happen to an agent, as one closed union of frozen values.

The driver gathers them, `machine.step` decides on them; a story is a list of them.
"""

from collections.abc import Mapping

import msgspec

from easyscale.agent import store_events
from easyscale.agent.hardware.gpu_health import Trouble
from easyscale.balance import ProfileRecord
from easyscale.messages import FromWorker, StepReport
from easyscale.model import JobSpec, SnapshotRecord, Wish, WorkerId
from easyscale.pulse import Beat
from easyscale.rendezvous.agreement import JobView
from easyscale.reports import Stream


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """Base of all events."""


# --- from the supervisor -----------------------------------------------------------------------


class ZygoteReady(Event, frozen=True, kw_only=True):
    """The zygote has imported torch and can fork workers."""

    torch_version: str
    cpu_kind: str
    seconds: float


class ZygoteLost(Event, frozen=True, kw_only=True):
    """The zygote ended although nobody asked it to; its workers died with it."""

    reason: str


class WorkerForked(Event, frozen=True, kw_only=True):
    worker: WorkerId
    pid: int


class ForkFailed(Event, frozen=True, kw_only=True):
    worker: WorkerId
    reason: str


class WorkerSaid(Event, frozen=True, kw_only=True):
    worker: WorkerId
    message: FromWorker


class WorkerExited(Event, frozen=True, kw_only=True):
    """Exactly one of `exit_code` and `signal` is set; all it wrote has been delivered before."""

    worker: WorkerId
    pid: int
    exit_code: int | None
    signal: int | None
    #: Its last line on stderr, for an ending without a traceback.
    last_words: str
    #: Where it was when it ended; ticks come too seldom to tell.
    beat: Beat | None = None
    #: Why the kernel killed it, where the kernel did.
    killed_for: str = ""


class LogEnded(Event, frozen=True, kw_only=True):
    """Nothing more of this stream can be kept; the worker goes on, and so does its output."""

    worker: WorkerId
    stream: Stream
    pid: int
    reason: str


# --- from the devices --------------------------------------------------------------------------


class Slot(msgspec.Struct, frozen=True, kw_only=True, order=True):
    """A device place this node may use now; `kind` is empty where only the worker can tell."""

    name: str
    kind: str = ""
    #: The device's own name, which no renumbering changes; empty for a CPU slot.
    uuid: str = ""


class SlotsFound(Event, frozen=True, kw_only=True):
    """All slots of this node as of now: at the start, and whenever they change."""

    slots: tuple[Slot, ...]
    reason: str = ""
    #: The wish that this answers, if it came as one.
    wish_id: str = ""


class DeviceTroubled(Event, frozen=True, kw_only=True):
    """A device of this node, by the names its slots may have, is in trouble."""

    uuids: tuple[str, ...]
    trouble: Trouble
    reason: str


class SlotsRefused(Event, frozen=True, kw_only=True):
    """The devices that a wish named are not on this node; its slots stay as they are."""

    wish_id: str
    reason: str


# --- from the store ----------------------------------------------------------------------------


class JobOpened(Event, frozen=True, kw_only=True):
    """The `job` key is ours or agrees with us; `store` is where, as people name it."""

    spec: JobSpec
    store: str
    seconds: float


class SnapshotsFound(Event, frozen=True, kw_only=True):
    """What this node's snapshot folder holds, verified; comes before the first `Enrolled`."""

    records: tuple[SnapshotRecord, ...]
    #: The newest profile that was measured, if any is kept there.
    profile: ProfileRecord | None = None


class Enrolled(Event, frozen=True, kw_only=True):
    """Our registration stands; after a lost lease or an emptied store it comes again.

    Every key bound to the lease before is gone then and is written again.
    """

    create_revision: int


# What every agent hears of its registration and its store.
LeaseEnded = store_events.LeaseEnded
StoreAway = store_events.StoreAway
StoreBack = store_events.StoreBack


class Elected(Event, frozen=True, kw_only=True):
    """We lead; `token` fences its transactions."""

    token: int


class Deposed(Event, frozen=True, kw_only=True):
    """We lead no more, by the store's word or by its own clock."""

    reason: str


class Viewed(Event, frozen=True, kw_only=True):
    """The job as the store has it: all (`complete`, while leading) or what followers watch."""

    view: JobView
    complete: bool


class Transacted(Event, frozen=True, kw_only=True):
    """How a `Transact` ended; `succeeded` is None where the answer was lost."""

    name: str
    succeeded: bool | None
    #: The store's when it answered; 0 where the answer was lost.
    revision: int = 0


class Probed(Event, frozen=True, kw_only=True):
    """Which of the nodes that were asked answered, and which are registered no more."""

    asked: tuple[str, ...]
    reached: tuple[str, ...]
    absent: tuple[str, ...]


# --- from people and time ----------------------------------------------------------------------


class Signalled(Event, frozen=True, kw_only=True):
    """SIGINT, SIGTERM or SIGHUP came to the agent; `sender` names who sent it, where known."""

    number: int
    sender: str = ""


class Asked(Event, frozen=True, kw_only=True):
    """The command line asked through the control socket of this node."""

    wish_id: str
    wish: Wish


class Withdrawn(Event, frozen=True, kw_only=True):
    """Whoever asked does not want it any more: what has not begun does not happen."""

    wish_id: str


class Ticked(Event, frozen=True, kw_only=True):
    """Time has passed; where every worker is that has a pulse."""

    beats: Mapping[WorkerId, Beat]
    #: Seconds of this host's CLOCK_MONOTONIC, the clock of the beats.
    monotonic_s: float
    #: The newest report of each worker that has reported since the last tick.
    reports: Mapping[WorkerId, StepReport] = {}


AgentEvent = (
    ZygoteReady
    | ZygoteLost
    | WorkerForked
    | ForkFailed
    | WorkerSaid
    | WorkerExited
    | LogEnded
    | SlotsFound
    | SlotsRefused
    | DeviceTroubled
    | JobOpened
    | SnapshotsFound
    | Enrolled
    | LeaseEnded
    | StoreAway
    | StoreBack
    | Elected
    | Deposed
    | Viewed
    | Transacted
    | Probed
    | Signalled
    | Asked
    | Withdrawn
    | Ticked
)
