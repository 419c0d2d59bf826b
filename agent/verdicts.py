"""The values around a leader's decision: where it stands, and what it answers."""

from dataclasses import dataclass

from easyscale.agent.memory import Memory
from easyscale.agent.settings import LaunchSettings, Timeouts
from easyscale.model import JobSpec, SnapshotRecord
from easyscale.rendezvous.agreement import Decision, JobView
from easyscale.rendezvous.keys import Incarnation, JobKeys


@dataclass(frozen=True, slots=True)
class Waiting:
    """What no work is done for: people are told, with since when and until when at most."""

    since_s: float
    limit_s: float | None
    #: How many nodes the job needs, and how many of them are missing, where it is for nodes.
    wanted: int | None = None
    missing: int | None = None


@dataclass(frozen=True, slots=True)
class Standpoint:
    """One question to the leader: the view, its clock, and what its own agent knows beside."""

    view: JobView
    now: float
    settings: LaunchSettings
    keys: JobKeys
    #: What is fixed for the job's life, also when the store has forgotten it.
    spec: JobSpec | None = None
    #: What its snapshot folder holds, verified.
    found: tuple[SnapshotRecord, ...] = ()
    #: The furthest that its own workers are known to have come.
    position: int = -1
    step: int = 0
    #: When the store was last away from its own agent, until then.
    store_back_s: float = -1e9
    #: An outcome written before this is of an earlier launch of the job.
    since_revision: int = 0

    @property
    def timeouts(self) -> Timeouts:
        return self.settings.timeouts

    @property
    def is_new_start(self) -> bool:
        """An earlier launch of this job came to its end; this one goes on from its snapshot."""
        return self.view.outcome is not None and self.view.outcome_revision < self.since_revision

    def silent(self, memory: Memory) -> frozenset[Incarnation]:
        """Agents that have been without a lease for the take-over time."""
        return memory.silent(self.now, self.settings.takeover_after_s)

    def takeover_at(self, memory: Memory) -> float | None:
        """When the next silent agent will have been silent for long enough."""
        after_s = self.settings.takeover_after_s
        due = [since + after_s for since in memory.missing.values()] if after_s else []
        return min((at for at in due if at > self.now), default=None)

    def waiting_for_proof(self, memory: Memory) -> Waiting:
        """Who fell silent first is waited for until it may be taken over."""
        since_s = min(memory.missing.values(), default=self.now)
        return Waiting(since_s, self.settings.takeover_after_s)


@dataclass(frozen=True, slots=True)
class Verdict:
    """At most one decision, why, what to remember, and when to ask again without news."""

    decision: Decision | None
    reason: str
    memory: Memory
    wake_s: float | None = None
    waiting: Waiting | None = None
