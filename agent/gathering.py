"""Which workers may take ranks: nodes within the limits, slots of the job's kind, all started.

Pure; also answers what a start still waits for.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace

from easyscale.agent import reaching, words
from easyscale.agent.memory import Memory
from easyscale.agent.settings import LaunchSettings
from easyscale.model import Determinism, JobSpec, NodeRecord, SlotRecord, WorkerId
from easyscale.rendezvous.agreement import JobView


@dataclass(frozen=True, slots=True)
class Gathered:
    """Slots whose workers could start the job, or what is missing yet."""

    slots: tuple[SlotRecord, ...]
    #: The job's kind that this start would fix; empty under heterogeneous determinism.
    kind: str
    waits_for: str
    memory: Memory
    #: How many nodes a start lacks.
    missing: int = 0


def is_ready(slot: SlotRecord, view: JobView) -> bool:
    """Its worker waits in `register` and can be reached."""
    return (
        slot.state == "standby"
        and slot.worker is not None
        and bool(slot.address)
        and not view.ended(slot.worker)
    )


def admitted(view: JobView, settings: LaunchSettings) -> tuple[NodeRecord, ...]:
    """Nodes that may take part: those at work first, then by age, up to the most."""
    at_work = {worker.node for worker in view.base.workers} if view.base else set()
    nodes = sorted(
        view.nodes.values(),
        key=lambda node: (node.record.node not in at_work, node.create_revision),
    )
    return tuple(node.record for node in nodes[: settings.max_nodes])


def kind_of(slots: Iterable[SlotRecord], spec: JobSpec | None) -> str:
    """The kind that the job has, or that its first generation would fix: the most common."""
    if spec is None or spec.determinism is Determinism.HETEROGENEOUS:
        return ""
    if spec.kind:
        return spec.kind
    kinds = Counter(slot.kind for slot in slots)
    return min(kinds, key=lambda kind: (-kinds[kind], kind), default="")


def fits_kind(slot: SlotRecord, kind: str) -> bool:
    """Bits are kept between slots of one kind only; without a kind any slot fits."""
    return not kind or slot.kind == kind


def newcomers(view: JobView, settings: LaunchSettings) -> tuple[SlotRecord, ...]:
    """Waiting workers that could join a running job."""
    kind = kind_of((), view.spec)
    members = set(view.base.workers) if view.base else set()
    return tuple(
        slot
        for node in admitted(view, settings)
        for slot in node.slots
        if is_ready(slot, view) and slot.worker not in members and fits_kind(slot, kind)
        if not reaching.apart(view, node.node)
    )


def out_of_reach(view: JobView) -> str:
    """What keeps waiting workers from joining: the link that has to be proven first."""
    members = {worker.node for worker in view.base.workers} if view.base else set()
    for name in sorted(set(view.nodes) - members):
        ready = any(is_ready(slot, view) for slot in view.nodes[name].record.slots)
        others = reaching.apart(view, name) if ready else ()
        if others:
            return f"node {name} joins once it and {words.listed(others)} reach each other"
    return ""


def misfits(view: JobView, settings: LaunchSettings) -> tuple[SlotRecord, ...]:
    """Waiting workers that could join but for their kind."""
    kind = kind_of((), view.spec)
    return tuple(
        slot
        for node in admitted(view, settings)
        for slot in node.slots
        if is_ready(slot, view) and not fits_kind(slot, kind)
    )


def can_start(slot: SlotRecord, view: JobView) -> bool:
    """It waits for ranks, or for a generation that it never formed: it holds nothing yet."""
    formless = (
        slot.state == "in_use"
        and slot.worker is not None
        and bool(slot.address)
        and not view.ended(slot.worker)
        and not view.holds_state(slot.worker)
    )
    return formless or is_ready(slot, view)


def gather(
    view: JobView, memory: Memory, now: float, *, settings: LaunchSettings, least_nodes: int
) -> Gathered:
    """Collect what a start or restart can use; the first of it waits a moment for the rest."""
    nodes = admitted(view, settings)
    open_slots = {
        record.node: [slot for slot in record.slots if slot.state not in ("draining", "gone")]
        for record in nodes
    }
    ready = {name: [s for s in slots if can_start(s, view)] for name, slots in open_slots.items()}
    # A node starts no more workers than the job has logical workers, however many slots it has.
    most = view.spec.logical_workers if view.spec is not None else settings.logical_workers
    complete = [
        n for n, slots in open_slots.items() if slots and len(ready[n]) >= min(len(slots), most)
    ]
    partial = [name for name, slots in ready.items() if slots]
    memory = replace(memory, gathering_s=now if memory.gathering_s is None else memory.gathering_s)
    since = memory.gathering_s if memory.gathering_s is not None else now
    patient = now - since < settings.timeouts.prepare_timeout_s
    have = complete if patient else partial
    usable = tuple(slot for name in sorted(ready) for slot in ready[name])
    kind = kind_of(usable, view.spec)
    usable = tuple(slot for slot in usable if fits_kind(slot, kind))

    met = sorted(name for name, slots in open_slots.items() if slots)

    def wait(reason: str, *, missing: int = 0) -> Gathered:
        return Gathered((), kind, reason, memory, missing)

    if len(met) < least_nodes:
        have_met = f" · have {words.listed(met)}" if met else ""
        missing = least_nodes - len(met)
        return wait(f"waiting for {missing} of {least_nodes} nodes{have_met}", missing=missing)
    if len(have) < least_nodes or not usable:
        return wait("waits for the workers to reach register")
    if memory.complete_s is None:
        memory = replace(memory, complete_s=now)
    others = [name for name in open_slots if name not in have and open_slots[name]]
    assert memory.complete_s is not None
    if others and now - memory.complete_s < settings.timeouts.settle_s:
        return wait(f"settling: {words.listed(others)} may be ready too")
    return Gathered(usable, kind, "", memory)


def offered(view: JobView) -> tuple[WorkerId, ...]:
    """Workers that run on although the store that knew them is gone: they hold the state."""
    return tuple(
        slot.worker
        for node in view.nodes.values()
        for slot in node.record.slots
        if slot.worker is not None
        and slot.state in ("in_use", "draining")
        and slot.address
        and node.record.formed is not None
        and not view.ended(slot.worker)
    )
