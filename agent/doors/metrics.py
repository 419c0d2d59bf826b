"""A job in Prometheus' words: the families that an agent exposes, with name and help; pure.

Facts of the job carry `job_id`; every agent tells them, so take one (`max by (job_id)`). Facts of
slots are told by the agent of their own node alone.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from easyscale.job_status import JobStatus, SlotFacts, StepTime
from easyscale.model import JobState


@dataclass(frozen=True, slots=True)
class Seen:
    """What one agent exposes at one moment."""

    status: JobStatus
    node: str
    version: str
    leads: bool
    #: How often each kind of change was told since this agent began.
    told: Mapping[str, int]


class Kind(Enum):
    """How a value may move."""

    GAUGE = "gauge"
    COUNTER = "counter"


Sample = tuple[tuple[str, ...], float]


@dataclass(frozen=True, slots=True)
class Family:
    """One metric; a counter's name ends in `_total`."""

    name: str
    help: str
    labels: tuple[str, ...]
    read: Callable[[Seen], Iterable[Sample]]
    kind: Kind = Kind.GAUGE


def _job(
    name: str, text: str, read: Callable[[JobStatus], float | None], kind: Kind = Kind.GAUGE
) -> Family:
    """A fact of the whole job; one that is unknown is absent."""

    def samples(seen: Seen) -> Iterable[Sample]:
        value = read(seen.status)
        return () if value is None else (((seen.status.job.id,), float(value)),)

    return Family(name, text, ("job_id",), samples, kind)


def _slot(name: str, text: str, read: Callable[[SlotFacts], float | None]) -> Family:
    """A fact of each slot of this node; one that is unknown is absent."""

    def samples(seen: Seen) -> Iterable[Sample]:
        for slot in seen.status.slots:
            value = read(slot)
            if slot.node == seen.node and value is not None:
                yield (seen.status.job.id, slot.node, slot.slot, slot.kind), float(value)

    return Family(name, text, ("job_id", "node", "slot", "kind"), samples)


def _info(seen: Seen) -> Iterable[Sample]:
    job = seen.status.job
    count = "" if job.logical_workers is None else str(job.logical_workers)
    labels = (job.id, seen.node, seen.version, job.mode, job.determinism or "", count)
    return ((labels, 1.0),)


def _states(seen: Seen) -> Iterable[Sample]:
    job = seen.status.job
    return [((job.id, str(state)), float(state is job.state)) for state in JobState]


def _metrics(seen: Seen) -> Iterable[Sample]:
    for name, metric in seen.status.metrics.items():
        if metric.last is not None:
            yield (seen.status.job.id, name), metric.last


def _slots(seen: Seen) -> Iterable[Sample]:
    counts, job = seen.status.counts, seen.status.job.id
    for state in ("in_use", "standby", "emptied", "spare", "starting", "draining", "gone"):
        yield (job, state), float(getattr(counts, state))


def _told(seen: Seen) -> Iterable[Sample]:
    for event, count in sorted(seen.told.items()):
        yield (seen.status.job.id, seen.node, event), float(count)


def _leads(seen: Seen) -> Iterable[Sample]:
    return (((seen.status.job.id, seen.node), float(seen.leads)),)


def _step_time(pick: Callable[[StepTime], float | None]) -> Callable[[JobStatus], float | None]:
    return lambda status: pick(status.step_time)


def _snapshot_age_s(status: JobStatus) -> float | None:
    return status.snapshot.age_s if status.snapshot is not None else None


def _snapshot_step(status: JobStatus) -> float | None:
    return status.snapshot.step if status.snapshot is not None else None


def _snapshot_bytes(status: JobStatus) -> float | None:
    return status.snapshot.bytes if status.snapshot is not None else None


FAMILIES: Sequence[Family] = (
    Family(
        "easyscale_info",
        "1; its labels say what this agent and its job are.",
        ("job_id", "node", "version", "mode", "determinism", "logical_workers"),
        _info,
    ),
    Family(
        "easyscale_job_state",
        "1 for the state the job is in, 0 for the others.",
        ("job_id", "state"),
        _states,
    ),
    Family("easyscale_leader", "1 where this agent leads the job.", ("job_id", "node"), _leads),
    _job("easyscale_step", "Steps that are completed.", lambda it: it.job.step),
    _job("easyscale_steps", "Steps in all, where the length is known.", lambda it: it.job.steps),
    _job("easyscale_epoch", "The epoch that runs.", lambda it: it.job.epoch),
    _job("easyscale_era", "The era of the generation that runs.", lambda it: it.job.era),
    _job("easyscale_generation", "The generation that runs.", lambda it: it.job.generation),
    _job("easyscale_steps_per_second", "Steps a second.", lambda it: it.job.steps_per_s),
    _job("easyscale_samples_per_second", "Samples a second.", lambda it: it.job.samples_per_s),
    _job("easyscale_left_seconds", "Time to the last step at this pace.", lambda it: it.job.left_s),
    _job(
        "easyscale_step_seconds",
        "How long a step takes.",
        _step_time(lambda time: time.measured_s),
    ),
    _job(
        "easyscale_step_predicted_seconds",
        "How long the plan says that it takes.",
        _step_time(lambda time: time.predicted_s),
    ),
    Family(
        "easyscale_metric",
        "What the script reported last, its mean over all logical workers.",
        ("job_id", "name"),
        _metrics,
    ),
    Family("easyscale_slots", "Slots by what they do.", ("job_id", "state"), _slots),
    _job("easyscale_nodes", "Nodes that offer slots.", lambda it: it.counts.nodes),
    Family(
        "easyscale_events_total",
        "Changes of each kind since this agent began.",
        ("job_id", "node", "event"),
        _told,
        Kind.COUNTER,
    ),
    _job(
        "easyscale_changes_total",
        "Changes of the job's devices since this agent began.",
        lambda it: it.changes.count,
        Kind.COUNTER,
    ),
    _job(
        "easyscale_paused_seconds_total",
        "How long changes kept training waiting, in all.",
        lambda it: it.changes.paused_s,
        Kind.COUNTER,
    ),
    _job(
        "easyscale_steps_lost_total",
        "Steps that had to be computed again.",
        lambda it: it.changes.steps_lost,
        Kind.COUNTER,
    ),
    _job("easyscale_restarts_used", "Failures without progress.", lambda it: it.budget.used),
    _job("easyscale_restarts_limit", "How many are borne.", lambda it: it.budget.limit),
    _job("easyscale_snapshot_step", "The step of the newest snapshot.", _snapshot_step),
    _job("easyscale_snapshot_bytes", "Its size.", _snapshot_bytes),
    _job("easyscale_snapshot_age_seconds", "Its age, where it lies on this node.", _snapshot_age_s),
    _job(
        "easyscale_store_reachable",
        "1 while etcd answers this agent.",
        lambda it: None if it.store is None else it.store.reachable,
    ),
    _job(
        "easyscale_store_silent_seconds",
        "For how long etcd has been silent.",
        lambda it: None if it.store is None else it.store.silent_s,
    ),
    _slot("easyscale_slot_ranks", "Logical ranks of the slot.", lambda it: len(it.ranks)),
    _slot(
        "easyscale_slot_micro_step_seconds",
        "Forward and backward of one logical worker, median.",
        lambda it: it.micro_step_s,
    ),
    _slot(
        "easyscale_slot_against_kind_ratio",
        "The same against the median of its kind.",
        lambda it: it.against_kind,
    ),
    _slot("easyscale_slot_busy_seconds", "Computing, in a step.", lambda it: it.busy_s),
    _slot("easyscale_slot_wait_seconds", "Waiting for others, in a step.", lambda it: it.wait_s),
    _slot(
        "easyscale_slot_data_wait_seconds",
        "Waiting for data, in a step.",
        lambda it: it.data_wait_s,
    ),
    _slot("easyscale_slot_slow", "1 where it is slow for its kind.", lambda it: it.slow),
    _slot("easyscale_slot_hung", "1 where its worker hangs.", lambda it: it.hung),
    _slot(
        "easyscale_slot_utilisation_ratio",
        "How busy the device is, 0 to 1.",
        lambda it: it.utilisation_share,
    ),
    _slot(
        "easyscale_slot_memory_used_bytes",
        "Memory of the device in use.",
        lambda it: it.memory_used_bytes,
    ),
    _slot(
        "easyscale_slot_memory_bytes",
        "Memory that the device has.",
        lambda it: it.memory_total_bytes,
    ),
    _slot(
        "easyscale_slot_temperature_celsius",
        "Temperature of the device.",
        lambda it: it.temperature_c,
    ),
)
