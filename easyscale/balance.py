"""What a job's balancer keeps in the store: speeds, what was tried, its profile, its proposals.

The leader writes these records; agents tell people what changed in them, commands draw them.
"""

import msgspec

from easyscale.model import Assignment, Determinism, GenerationNumber, Record, WorkerId


class SlowSlot(msgspec.Struct, frozen=True, kw_only=True):
    """A slot that takes much longer than its kind, or than it used to."""

    worker: WorkerId
    #: The step since which it is slow.
    since_step: int
    micro_step_s: float
    #: Against the median of its kind, or its own best where it is the only one.
    ratio: float
    #: It holds nothing: any share of its own would be what all others wait for.
    emptied: bool
    reason: str


class FormerPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The plan before the present one."""

    generation: GenerationNumber
    #: What a step took under it, by its slots' speeds when it was left.
    step_s: float | None
    #: Logical workers by place, `node/slot`.
    counts: dict[str, int]


class TriedPlan(msgspec.Struct, frozen=True, kw_only=True):
    """A plan that was undone, and the speeds at which it may not be tried again."""

    counts: tuple[tuple[WorkerId, int], ...]
    #: Seconds of a micro-step there, as measured then.
    micro_steps: dict[str, float]
    promised_s: float
    measured_s: float
    reason: str
    #: The position up to which it is not tried again, and how often it has failed.
    until: int
    times: int = 1


class DoubtedSlot(msgspec.Struct, frozen=True, kw_only=True):
    """A slot that is believed to compute slower than it measures."""

    worker: WorkerId
    #: So many times as long; written anew when it has changed clearly.
    factor: float
    reason: str
    #: What it measured when that was found, and the position up to which it is doubted for it, for
    #: the next leader; 0: that one finds out anew.
    micro_step_s: float = 0.0
    until: int = 0


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """A rebalance that must prove itself: measured worse than before, it is taken back."""

    generation: GenerationNumber
    #: The map before it, in the order of the process ranks.
    former: tuple[Assignment, ...]
    #: Seconds of a step as measured under that map, of it beside micro-steps, and as promised now.
    before_s: float
    beside_s: float
    promised_s: float
    #: It is judged when the job has completed so many operations.
    due: int
    #: Set when it was judged worse: why the former map comes back.
    undone: str = ""


class Swing(msgspec.Struct, frozen=True, kw_only=True):
    """A slot whose ranks left since it was slow: how often they had come back in vain before."""

    times: int
    #: What a rank took there when they left.
    slow_s: float
    #: The position up to which it is remembered.
    until: int
    #: They came back; since when it is well, while they have not.
    is_back: bool = False
    since: int | None = None


class SwingingSlot(msgspec.Struct, frozen=True, kw_only=True):
    """Whose ranks left since it was slow; where they came back in vain, they wait longer."""

    worker: WorkerId
    swing: Swing
    #: It is given no more ranks before it has been well for so many steps.
    wait_steps: int = 0


class SpeedRecord(Record, frozen=True, kw_only=True):
    """How the present plan came about, which slots are slow, what did not work (`speed`)."""

    generation: GenerationNumber
    #: RFC 3339, UTC.
    planned_at: str
    planned_at_step: int
    former: FormerPlan | None = None
    slow: tuple[SlowSlot, ...] = ()
    tried: tuple[TriedPlan, ...] = ()
    #: What else its leader goes by, so that others can tell why the plan is this one.
    doubts: tuple[DoubtedSlot, ...] = ()
    swings: tuple[SwingingSlot, ...] = ()
    trial: Trial | None = None
    max_nodes: int | None = None


class ProfilePoint(msgspec.Struct, frozen=True, kw_only=True):
    """Throughput with some of a job's slots."""

    #: Slots by kind; those without logical workers are not counted.
    slots: dict[str, int]
    #: Logical workers of each slot, most first.
    counts: tuple[int, ...]
    step_s: float
    micro_steps_per_s: float
    #: What the planner said a step's micro-steps would take.
    predicted_s: float | None
    #: Seconds of a micro-step by place, of the slots that took part.
    micro_steps: dict[str, float] = {}


#: Joins and moves wait until a profile has ended, and whoever asked for it may be gone.
MOST_PROFILE_STEPS = 1000


class ProfileRecord(Record, frozen=True, kw_only=True):
    """Throughput against number and kind of slots, measured in the running job (`profile`)."""

    #: The wish that asked for it.
    wish: str
    by: str
    at: str
    logical_workers: int
    #: Levels of determinism differ in what a micro-step costs.
    determinism: Determinism = Determinism.SAME_KIND
    #: How many points there will be.
    planned: int
    points: tuple[ProfilePoint, ...] = ()
    done: bool = False
    #: Why it ended before its last point.
    reason: str = ""


class Proposal(msgspec.Struct, frozen=True, kw_only=True):
    """So many slots more of one kind, and what they would bring."""

    kind: str
    slots: int
    #: ((T' / T) - 1) / slots + 1: the gain for each slot (EasyScale, section 3).
    score: float
    step_s: float
    waste_share: float


class ProposalsRecord(Record, frozen=True, kw_only=True):
    """What a job asks of the level above, best first (`proposals`)."""

    generation: GenerationNumber
    step: int
    #: Slots it has, by kind, and what its step takes with them.
    slots: dict[str, int]
    step_s: float
    proposals: tuple[Proposal, ...] = ()
