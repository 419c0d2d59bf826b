"""What a leader has to remember between views: since when things are as they are.

A frozen value that goes into a decision and comes out of it. A new leader begins with what its own
workers do, and with what the records say of the balance (balance/recalling.py).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from easyscale.agent import benching
from easyscale.agent.benching import Bench
from easyscale.agent.settings import Timeouts
from easyscale.balance import FormerPlan, ProfileRecord, Swing, Trial, TriedPlan
from easyscale.model import GenerationNumber, Mode, WorkerId
from easyscale.rendezvous.agreement import JobView
from easyscale.rendezvous.keys import Incarnation

#: More than this share of the registrations vanishing together is the store's hiccup.
MASS_SHARE = 0.5


@dataclass(frozen=True, slots=True)
class Attempt:
    """A set of workers that was committed after a loss, how often in a row, and when."""

    generation: GenerationNumber
    members: frozenset[WorkerId]
    times: int
    at_s: float


@dataclass(frozen=True, slots=True)
class Appeal:
    """A map was undone for long steps; if they stay as long without it, it was not the map."""

    generation: GenerationNumber
    counts: tuple[tuple[WorkerId, int], ...]
    before_s: float
    measured_s: float
    #: It is heard when the job has completed so many operations.
    due: int


@dataclass(frozen=True, slots=True)
class Slowness:
    """A slot that takes longer than its kind: since which position, how much, whether told."""

    since: int
    since_step: int
    micro_step_s: float
    ratio: float
    #: What it is held against: `its kind`, or `its best`.
    usual: str
    is_told: bool
    #: On the leader's clock.
    since_s: float = 0.0
    #: It is as fast as usual again since this position and time; None while it is not.
    well: tuple[int, float] | None = None
    #: The part of its micro-step that waits for data, where that is why it is slow.
    data_wait_s: float = 0.0
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Relapse:
    """A slot that was slow and well again: how often, remembered up to which position."""

    times: int
    until: int


@dataclass(frozen=True, slots=True)
class Doubt:
    """A slot that computes slower than it measures: how much, and what it measured then."""

    factor: float
    micro_step_s: float
    #: The position up to which it is doubted.
    until: int
    #: Who else may be to blame, should it be cleared.
    others: tuple[WorkerId, ...] = ()


@dataclass(frozen=True, slots=True)
class Starved:
    """A slot that waited for data: what a rank took and waited there, with how many ranks."""

    rank_s: float
    wait_s: float
    ranks: int
    #: The position up to which it is believed to wait again.
    until: int


@dataclass(frozen=True, slots=True)
class Probe:
    """A slot that was emptied for it is slow: since which position, how often looked at."""

    since: int
    looks: int = 0
    #: It has its rank since this position, and this time; None while it holds nothing.
    began: int | None = None
    began_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Scaling:
    """A profile under way: which slots its points leave ranks, and what was measured."""

    wish: str
    #: Workers that hold ranks, point by point; those measured already come first.
    points: tuple[tuple[WorkerId, ...], ...]
    #: The members that it was begun with: with others it ends.
    members: frozenset[WorkerId]
    record: ProfileRecord
    #: The size that is measured runs since then.
    since_s: float | None = None


@dataclass(frozen=True, slots=True)
class Memory:
    """All times are the leader's own clock, seconds."""

    present: frozenset[Incarnation] = frozenset()
    #: Agents of generations that could run which have no registration -> since when.
    missing: Mapping[Incarnation, float] = field(default_factory=dict)
    #: Most registrations vanished together: losses by lease alone do not count until then.
    guarded_until_s: float = 0.0
    vanished: tuple[tuple[float, Incarnation], ...] = ()
    position: int = -1
    moved_s: float = 0.0
    #: The first broken report of this generation came then.
    broken: tuple[GenerationNumber, float] | None = None
    attempt: Attempt | None = None
    plan: tuple[GenerationNumber, float] | None = None
    benched: Mapping[WorkerId, Bench] = field(default_factory=dict)
    #: The newest generation that all its members were seen to have entered.
    entered: GenerationNumber | None = None
    #: The change that is wanted, since when it is this one, and since when there is any.
    wanted: tuple[str, float, float] | None = None
    #: A store that knows nothing of a job that has snapshots was seen first then.
    headless_s: float | None = None
    #: Nodes to start with are gathered since then; the first of them was complete then.
    gathering_s: float | None = None
    complete_s: float | None = None
    trial: Trial | None = None
    appeal: Appeal | None = None
    #: Maps that measured worse than they had promised, and slots that had promised too much.
    tried: tuple[TriedPlan, ...] = ()
    doubts: Mapping[WorkerId, Doubt] = field(default_factory=dict)
    starved: Mapping[WorkerId, Starved] = field(default_factory=dict)
    #: Positions of the last changes for speed: each makes the next one harder for a while.
    moves: tuple[int, ...] = ()
    #: Since this position, and time, another map of the same slots is worth a move, as they say.
    promised: tuple[int, float] | None = None
    #: Since this position steps are shorter than slots say that their work is.
    unproven: int | None = None
    slow: Mapping[WorkerId, Slowness] = field(default_factory=dict)
    #: How many times as long as usual a rank took at a place, `node/slot`, and up to which position
    #: that is believed of whoever is started there next.
    slow_places: Mapping[str, tuple[float, int]] = field(default_factory=dict)
    relapses: Mapping[WorkerId, Relapse] = field(default_factory=dict)
    swings: Mapping[WorkerId, Swing] = field(default_factory=dict)
    #: The shortest micro-step that each slot has measured, seconds.
    best: Mapping[WorkerId, float] = field(default_factory=dict)
    probes: Mapping[WorkerId, Probe] = field(default_factory=dict)
    scaling: Scaling | None = None
    #: The plan before the present one, and the generation that replaced it.
    former: FormerPlan | None = None
    replaced_by: GenerationNumber | None = None

    def without_lease_s(self, worker: WorkerId, now: float) -> float:
        """How long the worker's agent has been without a registration."""
        since = self.missing.get(Incarnation(worker.node, worker.incarnation))
        return 0.0 if since is None else now - since

    def silent(self, now: float, after_s: float | None) -> frozenset[Incarnation]:
        """Agents that have been without a lease for the take-over time; None waits for ever."""
        if after_s is None:
            return frozenset()
        return frozenset(agent for agent, since in self.missing.items() if now - since >= after_s)


def observe(
    memory: Memory, view: JobView, now: float, *, timeouts: Timeouts, position: int = -1
) -> Memory:
    """Note what has changed; `position` is what the leader's own workers are known to have done."""
    present = frozenset(node.incarnation for node in view.nodes.values())
    expected = {
        Incarnation(worker.node, worker.incarnation)
        for commit in (*view.open, *view.forgotten)
        for worker in commit.workers
        if not view.ended(worker)
    }
    missing = {agent: memory.missing.get(agent, now) for agent in expected - present}
    memory = _notice_mass_expiry(memory, view, now, gone=memory.present - present, t=timeouts)
    memory = replace(memory, present=present, missing=missing)
    reached = max(position, view.progress.position if view.progress else -1)
    if reached != memory.position:
        memory = replace(memory, position=reached, moved_s=now)
    base = view.base
    if base is not None and view.is_entered(base):
        memory = replace(memory, entered=base.generation)
    if base is not None and any(view.is_present(w) and view.holds_state(w) for w in base.workers):
        # The job runs: a wait from when its agents were away counts for nothing any more.
        memory = replace(memory, gathering_s=None, complete_s=None)
    memory = _notice_attempt(memory, view, now)
    return benching.follow(_notice_reports(memory, view, now), view, now, timeouts)


def _notice_mass_expiry(
    memory: Memory, view: JobView, now: float, *, gone: frozenset[Incarnation], t: Timeouts
) -> Memory:
    lately = [(at, agent) for at, agent in memory.vanished if now - at <= t.lease_ttl_s]
    lately += [(now, agent) for agent in sorted(gone, key=str) if agent not in view.gone_agents]
    before = len(memory.present | gone)
    guarded = memory.guarded_until_s
    if gone and len(lately) > 1 and len(lately) > MASS_SHARE * before:
        guarded = now + t.mass_guard_s
    return replace(memory, vanished=tuple(lately), guarded_until_s=guarded)


def _notice_attempt(memory: Memory, view: JobView, now: float) -> Memory:
    """Count how often the same survivors were sent into a new generation without moving since."""
    base, former = view.base, memory.attempt
    if base is None or base.mode is not Mode.NOW:
        return replace(memory, attempt=None)
    if former is not None and former.generation == base.generation:
        return memory
    members = frozenset(base.workers)
    again = former is not None and former.members == members and memory.moved_s <= former.at_s
    times = former.times + 1 if former is not None and again else 1
    return replace(memory, attempt=Attempt(base.generation, members, times, now))


def _notice_reports(memory: Memory, view: JobView, now: float) -> Memory:
    reported = [g for g, reports in view.breaks.items() if reports]
    if not reported:
        memory = replace(memory, broken=None)
    elif memory.broken is None or memory.broken[0] != max(reported):
        memory = replace(memory, broken=(max(reported), now))
    plan = view.open_plan
    if plan is None:
        return replace(memory, plan=None)
    if memory.plan is None or memory.plan[0] != plan.generation:
        return replace(memory, plan=(plan.generation, now))
    return memory
