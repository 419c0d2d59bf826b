"""A job's plan as one frozen value: agents compose it, `plan` draws it, `--json` prints it.

The fields and their names are the JSON form.
"""

import msgspec


class PlannedSlot(msgspec.Struct, frozen=True, kw_only=True):
    """What one slot has to do in a step."""

    node: str
    slot: str
    kind: str
    ranks: tuple[int, ...]
    micro_steps_per_s: float | None
    spread_share: float | None
    busy_s: float | None
    #: How many logical workers it had in the plan before.
    previous_count: int | None = None
    #: How much of each rank's time there is waiting for data; part of `busy_s`.
    data_wait_s: float | None = None
    #: So many ranks fit into its memory; null where nothing bounds it.
    most_ranks: int | None = None
    #: It is believed to take so many times what it measures, and why; part of `busy_s`.
    doubt_factor: float | None = None
    doubt: str = ""


class SlotLeftOut(msgspec.Struct, frozen=True, kw_only=True):
    """A slot that no plan of this job may give ranks to: it counts in no sum."""

    node: str
    slot: str
    kind: str
    reason: str


class Waste(msgspec.Struct, frozen=True, kw_only=True):
    """Capability that the plan cannot use, in micro-steps per second."""

    idle_per_s: float
    padding_per_s: float
    share: float


class PreviousPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The plan before."""

    generation: int
    step_seconds: float | None
    #: Logical workers of each slot that had some, most first.
    per_slot: tuple[int, ...] = ()


class Alternative(msgspec.Struct, frozen=True, kw_only=True):
    """Another plan that was looked at, or one that more devices would allow."""

    name: str
    per_slot: tuple[int, ...]
    busy_s: float | None
    #: Step time against the present plan; null for the plan itself.
    against_now_share: float | None
    reason: str
    is_present: bool = False


class PlanFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Everything `easyscale plan JOB` says."""

    version: int = 1
    #: None for slots that do not exist: then nothing was planned, and nothing runs.
    job: str | None
    era: int | None
    generation: int | None
    planned_at: str | None
    planned_at_step: int | None
    logical_workers: int
    step_seconds: float | None
    measured_step_seconds: float | None
    throughput_per_s: float | None
    capability_per_s: float | None
    waste: Waste | None
    reason: str
    assignments: tuple[PlannedSlot, ...]
    moved_ranks: tuple[int, ...] = ()
    previous: PreviousPlan | None = None
    alternatives: tuple[Alternative, ...] = ()
    #: Since which slot the step is slower than predicted, if one can be named.
    slower_since: str | None = None
    #: Why other plans were looked at.
    occasion: str = ""
    left_out: tuple[SlotLeftOut, ...] = ()
