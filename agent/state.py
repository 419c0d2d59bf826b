"""An agent's whole state, frozen, and the turn in which one event changes it.

A slot has at most one living worker; what an ended one leaves behind is in the store's `gone/`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

import msgspec

from easyscale.agent.actions import AgentAction
from easyscale.agent.events import Slot
from easyscale.agent.memory import Memory
from easyscale.agent.settings import Identity, LaunchSettings
from easyscale.balance import ProfileRecord
from easyscale.messages import Broken, Failure, Finished, StepReport
from easyscale.model import (
    Commit,
    Ending,
    GenerationNumber,
    JobSpec,
    LogicalRank,
    NodeRecord,
    SnapshotRecord,
    WorkerId,
)
from easyscale.pulse import Beat
from easyscale.rendezvous.agreement import JobView
from easyscale.rendezvous.keys import JobKeys

#: A story keeps this many of the newest decisions.
STORY_LENGTH = 500


@dataclass(frozen=True, slots=True)
class Now:
    """Two clocks: `s` for durations (runs on while the host sleeps), `wall_s` for people."""

    s: float
    wall_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Story:
    """One thing that happened, what was decided on it, and why."""

    at_s: float
    event: str
    decision: str
    reason: str


class Phase(StrEnum):
    """Where a worker of this node is, as its agent knows."""

    #: Asked of the zygote.
    FORKING = "forking"
    #: Runs the script towards `register`.
    STARTING = "starting"
    #: Waits in `register` for ranks.
    STANDBY = "standby"
    #: Named by the newest commit it was told.
    MEMBER = "member"
    #: A newer generation goes on without it; it ends by itself.
    LEAVING = "leaving"
    #: Completed the end of training; runs the script's tail.
    FINISHED = "finished"


@dataclass(frozen=True, slots=True)
class Entered:
    """The generation that a worker formed last, and where it stood."""

    generation: GenerationNumber
    position: int
    has_state: bool
    pause_s: float | None = None
    step: int = 0


class OwnWorker(msgspec.Struct, frozen=True):
    """A living worker of this node."""

    id: WorkerId
    phase: Phase
    since_s: float
    pid: int | None = None
    kind: str = ""
    address: str = ""
    initialised: bool = False
    ranks: tuple[LogicalRank, ...] = ()
    entered: Entered | None = None
    #: Its cry for help and the plan it holds: they hang on the lease and are written again with it.
    broken: Broken | None = None
    broken_s: float = 0.0
    ready: GenerationNumber | None = None
    #: The newest plan and commit it was told, and when the commit was.
    plan: GenerationNumber | None = None
    #: It was asked for a plan then, and has not said ready for any since.
    asked_s: float = 0.0
    told: GenerationNumber | None = None
    told_s: float = 0.0
    report: StepReport | None = None
    beat: Beat | None = None
    #: Since then, on the clock of the pulses, each look found it stopped by a signal.
    held_s: float | None = None
    failure: Failure | None = None
    finished: Finished | None = None
    #: It said that it leaves in order.
    leaves: bool = False
    #: The step it stood at when it left or finished.
    last_step: int | None = None
    #: Why we end it; empty while we do not.
    stopped: str = ""
    killed_s: float | None = None
    #: Why it counts as hung, and the beat that it was judged by.
    hung: str = ""
    hung_at: Beat | None = None
    #: Memory that it could take when it began.
    free_bytes: int | None = None

    @property
    def step(self) -> int:
        """The step it is in, by the freshest word there is."""
        if self.last_step is not None:
            return self.last_step
        beat = self.beat.step if self.beat else 0
        entered = self.entered.step if self.entered else 0
        return max(beat, entered, self.report.step if self.report else 0)


class Stage(StrEnum):
    """What this agent is about."""

    RUNNING = "running"
    #: This node's slots shall hold nothing; it goes when its workers have.
    LEAVING = "leaving"
    #: The job has an outcome; its last words are due when the workers have ended.
    ENDING = "ending"
    #: Exit was asked for.
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class Totals:
    """What the closing lines count."""

    changes: Mapping[str, int] = field(default_factory=dict)
    paused_s: float = 0.0
    longest_pause_s: float = 0.0
    steps_lost: int = 0
    restarts: int = 0
    history: tuple[float, ...] = ()
    first_value: float | None = None
    step_times: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Respawn:
    """How often in a row the workers of a slot failed, and when the next one may start."""

    failures: int
    ready_s: float
    #: The step at which the last one failed.
    step: int
    #: Why the slot is in quarantine; empty while it is not.
    quarantine: str = ""


@dataclass(frozen=True, slots=True)
class Cut:
    """A node that ours has lost the way to."""

    #: When its agent is asked again, and before when no answer counts.
    ask_s: float
    until_s: float
    pause_s: float
    is_asked: bool = False


class State(msgspec.Struct, frozen=True):
    """A struct and no dataclass: each event replaces it some times, which costs 1 us so, not 40."""

    settings: LaunchSettings
    identity: Identity
    keys: JobKeys
    began_s: float
    stage: Stage = Stage.RUNNING
    slots: tuple[Slot, ...] = ()
    #: Slots that shall hold nothing: drained, withdrawn, or all of them while leaving.
    withdrawn: frozenset[str] = frozenset()
    #: Why, of those that were taken away while the node stays.
    why_withdrawn: Mapping[str, str] = msgspec.field(default_factory=dict)
    #: What CPU workers share in bits; None until the zygote can fork.
    zygote_kind: str | None = None
    #: How it ended, once it is not started again; and how often it was lost without progress.
    lost_zygote: str = ""
    zygote_losses: int = 0
    spec: JobSpec | None = None
    store: str = ""
    workers: Mapping[str, OwnWorker] = msgspec.field(default_factory=dict)
    #: Our workers that have ended: their proof is written again into a store that lost it.
    buried: Mapping[WorkerId, Ending] = msgspec.field(default_factory=dict)
    spawns: Mapping[str, int] = msgspec.field(default_factory=dict)
    respawns: Mapping[str, Respawn] = msgspec.field(default_factory=dict)
    #: create_revision of our registration, None while it does not stand; that of the first one.
    enrolled: int | None = None
    first_revision: int | None = None
    record: NodeRecord | None = None
    measured_s: float = -1e9
    #: The store is away since then; it was last away until then.
    away_s: float | None = None
    #: What it answers meanwhile, where it refuses in place of being silent.
    refuses: str = ""
    back_s: float = -1e9
    view: JobView = msgspec.field(default_factory=JobView)
    commit: Commit | None = None
    former: Commit | None = None
    #: The store has shown that it knows `commit`: it need not be offered.
    is_confirmed: bool = True
    #: A commit whose line for people waits for the first of our workers to enter it.
    untold: Commit | None = None
    #: People were told that workers of this node take part.
    told_start: bool = False
    #: Slots of which people were told why they stay standby.
    told_kinds: frozenset[str] = frozenset()
    token: int | None = None
    #: The last tick, and since when they came without a gap, on the clock of the pulses.
    ticked_s: float = -1e9
    awake_s: float = -1e9
    #: Main was seen to have ended in order then.
    over_s: float | None = None
    #: The view holds the whole job, so the leader may decide on it.
    is_complete: bool = False
    memory: Memory = msgspec.field(default_factory=Memory)
    #: The view on which the leader acted last, the transaction under way, when to look again.
    acted_revision: int = -1
    asked_revision: int = -1
    asked_s: float = -1e9
    deciding: str = ""
    wake_s: float | None = None
    leader_reason: str = ""
    #: Key -> what a leader has last written there for people and for the next leader.
    published: Mapping[str, str] = msgspec.field(default_factory=dict)
    proposed_s: float = -1e9
    #: The profile that lies beside the snapshots of this node.
    kept_profile: ProfileRecord | None = None
    found: tuple[SnapshotRecord, ...] = ()
    #: The era whose store was shown which snapshots there are.
    shown_era: int | None = None
    #: Snapshots that are durable here and not yet registered.
    unregistered: tuple[SnapshotRecord, ...] = ()
    registering: str = ""
    #: Snapshots whose folders we were told to delete.
    deleted: frozenset[str] = frozenset()
    progress_s: float = -1e9
    shown_s: float = -1e9
    #: What people were told last that the job stands still for, and when.
    told_waiting: str = ""
    waiting_s: float = -1e9
    signal: int | None = None
    signalled_s: float = -1e9
    leave_by_s: float | None = None
    is_forced: bool = False
    drained_s: float | None = None
    ended_s: float | None = None
    #: Whom our workers could not exchange with, as long as it is not known why.
    suspects: frozenset[WorkerId] = frozenset()
    #: Nodes out of reach, and how often each has been.
    cuts: Mapping[str, Cut] = msgspec.field(default_factory=dict)
    cut_before: Mapping[str, int] = msgspec.field(default_factory=dict)
    reported_lost: frozenset[WorkerId] = frozenset()
    #: Wishes for other devices that were taken up, and those of them that are done.
    sought: frozenset[str] = frozenset()
    sought_done: frozenset[str] = frozenset()
    last_report: StepReport | None = None
    totals: Totals = msgspec.field(default_factory=Totals)
    story: tuple[Story, ...] = ()

    @property
    def node(self) -> str:
        return self.identity.node

    @property
    def revision_known(self) -> bool:
        """The store has been read at least once, so a compare of `head` means something."""
        return self.view.revision > 0

    @property
    def main_worker(self) -> OwnWorker | None:
        """Main, if it is one of ours."""
        if self.commit is None or self.commit.main is None:
            return None
        worker = self.workers.get(self.commit.main.slot)
        return worker if worker is not None and worker.id == self.commit.main else None

    @property
    def hurry_s(self) -> float | None:
        """When half of the grace is over."""
        return None if self.leave_by_s is None else self.leave_by_s - self.settings.grace_s / 2

    @property
    def step(self) -> int:
        """The step of the job, by the freshest word of our own workers or the store."""
        return max((worker.step for worker in self.workers.values()), default=self._stored_step)

    @property
    def job_step(self) -> int:
        """How far the job has come, also while our own workers are on their way in."""
        return max(self._stored_step, self.step)

    @property
    def _stored_step(self) -> int:
        return self.view.progress.step if self.view.progress else 0


class Turn:
    """One event's work: the state as it becomes, the actions in order, the reasons."""

    def __init__(self, state: State, now: Now, event: str) -> None:
        self.state = state
        self.now = now
        self.actions: list[AgentAction] = []
        self.reasons: list[str] = []
        self._event = event

    def set(self, **changes: object) -> None:
        self.state = msgspec.structs.replace(self.state, **changes)

    def do(self, action: AgentAction) -> None:
        self.actions.append(action)

    def because(self, decision: str, reason: str = "") -> None:
        """Note a decision: it is logged once and kept in the story."""
        self.reasons.append(f"{decision}: {reason}" if reason else decision)
        line = Story(self.now.s, self._event, decision, reason)
        self.set(story=(*self.state.story, line)[-STORY_LENGTH:])

    def put_worker(self, worker: OwnWorker) -> None:
        self.set(workers={**self.state.workers, worker.id.slot: worker})

    def drop_worker(self, worker: OwnWorker) -> None:
        self.set(workers={s: w for s, w in self.state.workers.items() if w.id != worker.id})

    def own(self, worker: WorkerId) -> OwnWorker | None:
        """Our living worker of that id: a message of an ended one finds none."""
        found = self.state.workers.get(worker.slot)
        return found if found is not None and found.id == worker else None
