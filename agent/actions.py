"""Everything an agent can do, as one closed union of frozen values.

`machine.step` asks for them, the driver carries them out in order and answers with events.
"""

import msgspec

from easyscale.balance import ProfileRecord
from easyscale.messages import ToWorker
from easyscale.model import NodeRecord, WorkerId
from easyscale.rendezvous.store import Compare, Operation
from easyscale.reports import FirstCause, JobEvent, Progress, Summary


class Action(msgspec.Struct, frozen=True, kw_only=True):
    """Base of all actions."""


# --- for the supervisor ------------------------------------------------------------------------


class StartZygote(Action, frozen=True, kw_only=True):
    """Start the zygote again after it was lost; answered by ZygoteReady or ZygoteLost."""


class Fork(Action, frozen=True, kw_only=True):
    """Start this worker; answered by WorkerForked or ForkFailed."""

    worker: WorkerId


class Tell(Action, frozen=True, kw_only=True):
    worker: WorkerId
    message: ToWorker


class StopWorker(Action, frozen=True, kw_only=True):
    """Walk the stop ladder; answered by WorkerExited."""

    worker: WorkerId
    reason: str


class KillWorker(Action, frozen=True, kw_only=True):
    """SIGKILL its process group now."""

    worker: WorkerId
    reason: str


class DumpStacks(Action, frozen=True, kw_only=True):
    """Have it write every thread's stack to its stderr."""

    worker: WorkerId


# --- for the store -----------------------------------------------------------------------------


class Enrol(Action, frozen=True, kw_only=True):
    """Register with this record, or replace the record of the registration that stands."""

    record: NodeRecord


class Write(Action, frozen=True, kw_only=True):
    """Put a key that only we write, when the store can; a later write of the key replaces it.

    A leased key is bound to the lease of our registration and goes with it.
    """

    key: str
    value: str
    leased: bool


class Transact(Action, frozen=True, kw_only=True):
    """Try once, now; answered by Transacted with this name. Never kept for later."""

    name: str
    compares: tuple[Compare, ...]
    operations: tuple[Operation, ...]


class Campaign(Action, frozen=True, kw_only=True):
    """Take part in elections from now on."""


class Resign(Action, frozen=True, kw_only=True):
    """Lead no more and stand in no election."""

    reason: str


class Leave(Action, frozen=True, kw_only=True):
    """Say that this agent and all its workers have ended (`gone/<node>/<incarnation>`), revoke."""

    how: str


# --- for the devices ---------------------------------------------------------------------------


class FindSlots(Action, frozen=True, kw_only=True):
    """See which slots these devices are; answered by SlotsFound or SlotsRefused with the wish."""

    devices: str
    wish_id: str
    by: str


# --- for other agents --------------------------------------------------------------------------


class Probe(Action, frozen=True, kw_only=True):
    """Ask the agents of these nodes whether they hear us; answered by Probed."""

    nodes: tuple[str, ...]


# --- for the snapshot folder -------------------------------------------------------------------


class DeleteSnapshots(Action, frozen=True, kw_only=True):
    """These are superseded by a fenced mark: their folders may go."""

    names: tuple[str, ...]


class KeepProfile(Action, frozen=True, kw_only=True):
    """A profile is complete: it goes beside the snapshots."""

    record: ProfileRecord


# --- for people --------------------------------------------------------------------------------


class Announce(Action, frozen=True, kw_only=True):
    event: JobEvent


class ShowProgress(Action, frozen=True, kw_only=True):
    progress: Progress


class ReportCause(Action, frozen=True, kw_only=True):
    cause: FirstCause


class Conclude(Action, frozen=True, kw_only=True):
    summary: Summary


class Exit(Action, frozen=True, kw_only=True):
    """The last action of an agent: end everything and leave with this code."""

    code: int
    reason: str
    #: What the store still has to hear may take so long; None: as long as such calls take.
    farewell_s: float | None = None


AgentAction = (
    StartZygote
    | Fork
    | Tell
    | StopWorker
    | KillWorker
    | DumpStacks
    | Enrol
    | Write
    | Transact
    | Campaign
    | Resign
    | Leave
    | FindSlots
    | Probe
    | DeleteSnapshots
    | KeepProfile
    | Announce
    | ShowProgress
    | ReportCause
    | Conclude
    | Exit
)
