"""The state of a job as one frozen value: agents compose it, `status` draws it, `--json` prints it.

The fields and their names are the JSON form; ages and shares come in the value, never from a clock.
"""

from collections.abc import Mapping

import msgspec

from easyscale.model import JobState
from easyscale.reports import FirstCause, JobEvent, Summary


class JobFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The job itself; `jobs` lists these."""

    id: str
    state: JobState
    mode: str
    logical_workers: int | None
    determinism: str | None
    era: int
    generation: int
    #: None, as the epoch, in a job whose steps nobody knows: one without logical workers.
    step: int | None
    steps: int | None
    epoch: int | None
    epochs: int | None
    started: str | None
    elapsed_s: float | None
    left_s: float | None
    steps_per_s: float | None
    samples_per_s: float | None
    #: What a sample is called: samples, tokens.
    unit: str = "samples"
    digest: str | None = None
    exit_code: int | None = None
    user: str | None = None
    #: One sentence: why it waits, what is odd, how it ended.
    note: str | None = None


class Metric(msgspec.Struct, frozen=True, kw_only=True):
    """A metric with its history as (step, value), oldest first."""

    last: float | None
    first: float | None
    history: tuple[tuple[int, float], ...] = ()
    #: The first step at which it was no number.
    not_finite_since: int | None = None


class SlotFacts(msgspec.Struct, frozen=True, kw_only=True):
    """One slot; `state` is in_use, standby, emptied, spare, starting, draining or gone."""

    node: str
    slot: str
    kind: str
    state: str
    ranks: tuple[int, ...] = ()
    process_rank: int | None = None
    pid: int | None = None
    micro_step_s: float | None = None
    micro_steps_per_s: float | None = None
    #: Its 20-step median against the median of its kind.
    against_kind: float | None = None
    busy_s: float | None = None
    wait_s: float | None = None
    data_wait_s: float | None = None
    utilisation_share: float | None = None
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    temperature_c: int | None = None
    slow: bool = False
    hung: bool = False
    sets_step: bool = False
    #: Why it is worth a look, in one sentence, and since when.
    note: str | None = None
    since_s: float | None = None

    @property
    def place(self) -> str:
        """`node/slot`, as it is named everywhere."""
        return f"{self.node}/{self.slot}"


class Counts(msgspec.Struct, frozen=True, kw_only=True):
    """Slots by state; they add up to all slots."""

    in_use: int
    standby: int
    emptied: int
    #: Without a process: their node has as many as the job has ranks.
    spare: int = 0
    starting: int
    draining: int
    gone: int
    nodes: int


class StepTime(msgspec.Struct, frozen=True, kw_only=True):
    """How long a step takes, and what the plan promised."""

    measured_s: float | None
    predicted_s: float | None


class Changes(msgspec.Struct, frozen=True, kw_only=True):
    """What changed since the start, and the newest changes, newest first."""

    count: int
    #: None, as the steps, where nobody knows the steps between which a change lies.
    paused_s: float | None
    steps_lost: int | None
    last: tuple[JobEvent, ...] = ()


class SnapshotFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The newest snapshot."""

    step: int
    bytes: int | None
    verified: bool
    age_s: float | None
    next_step: int | None
    keep: int | None
    digest: str | None


class Budget(msgspec.Struct, frozen=True, kw_only=True):
    """Restarts used without progress, and how many are borne."""

    used: int
    #: None where only the launch knows it.
    limit: int | None


class StoreFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Whether etcd serves, and for how long it has not; `refuses` says why in its own words."""

    reachable: bool
    silent_s: float
    refuses: str = ""


class JobStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Everything `easyscale status JOB` says."""

    version: int = 1
    at: str
    job: JobFacts
    metrics: Mapping[str, Metric] = {}
    slots: tuple[SlotFacts, ...] = ()
    counts: Counts
    step_time: StepTime
    changes: Changes
    snapshot: SnapshotFacts | None = None
    budget: Budget
    #: None where the job has none: its one node meets nobody.
    store: StoreFacts | None


class Closing(msgspec.Struct, frozen=True, kw_only=True):
    """How an agent ended: with its job, or without it."""

    exit_code: int
    reason: str
    summary: Summary | None = None
    cause: FirstCause | None = None


class Glance(msgspec.Struct, frozen=True, kw_only=True):
    """What an agent answers to who asks for the status; `closing` with its last answer."""

    status: JobStatus
    closing: Closing | None = None


def count_slots(slots: tuple[SlotFacts, ...]) -> Counts:
    """The counts of a heading, which add up to all slots."""
    states = [slot.state for slot in slots]
    return Counts(
        **{name: states.count(name) for name in Counts.__struct_fields__ if name != "nodes"},
        nodes=len({slot.node for slot in slots}),
    )
