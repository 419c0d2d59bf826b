"""Which workers may take ranks: nodes within the limits, slots of the job's kind, all started.

Pure; also answers what a start still waits for.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Protocol

from easyscale.agent import reaching, wishes, words
from easyscale.agent.memory import Memory
from easyscale.agent.settings import LaunchSettings
from easyscale.kinds import bits_of
from easyscale.model import JobSpec, NodeRecord, SlotRecord, WorkerId
from easyscale.rendezvous.agreement import JobView


class NodeLimit(Protocol):
    """How many nodes a job takes at most; None: any number."""

    @property
    def max_nodes(self) -> int | None: ...


@dataclass(frozen=True, slots=True)
class Gathered:
    """Slots whose workers could start the job, or what is missing yet."""

    slots: tuple[SlotRecord, ...]
    #: The job's kind that this start would fix.
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


def admitted(view: JobView, limit: NodeLimit) -> tuple[NodeRecord, ...]:
    """Nodes that may take part: those at work first, then by age, up to the most."""
    return _in_order(view)[: limit.max_nodes]


def _in_order(view: JobView) -> tuple[NodeRecord, ...]:
    """A node that leaves comes last: whoever takes over from it has its place already."""
    at_work = {worker.node for worker in view.base.workers} if view.base else set()
    nodes = sorted(
        view.nodes.values(),
        key=lambda node: (
            wishes.leaves(view, node.record),
            node.record.node not in at_work,
            node.create_revision,
        ),
    )
    return tuple(node.record for node in nodes)


def kind_of(slots: Iterable[SlotRecord], spec: JobSpec | None) -> str:
    """The kind that the job has, or that its first generation would fix: the most common.

    At D2 as well: pinned workers say `baseline` for their processor, so that kinds differ in what
    the pins leave, as torch's version, threads, another architecture or a GPU.
    """
    if spec is None:
        return ""
    if spec.kind:
        return spec.kind
    kinds = Counter(bits_of(slot.kind) for slot in slots)
    return min(kinds, key=lambda kind: (-kinds[kind], kind), default="")


def fits_kind(slot: SlotRecord, kind: str) -> bool:
    """Bits are kept between slots of one kind only; without a kind any slot fits."""
    return not kind or bits_of(slot.kind) == bits_of(kind)


def newcomers(view: JobView, limit: NodeLimit) -> tuple[SlotRecord, ...]:
    """Waiting workers that could join a running job."""
    return tuple(slot for slot, hindrance in outside(view, limit) if not hindrance)


def outside(view: JobView, limit: NodeLimit) -> Iterator[tuple[SlotRecord, str]]:
    """The slots that a running job does not use, and what keeps each of them from joining."""
    members = set(view.base.workers) if view.base else set()
    kind = kind_of((), view.spec)
    for place, node in enumerate(_in_order(view)):
        most = limit.max_nodes
        surplus = "" if most is None or place < most else f"the job takes at most {most} nodes"
        for slot in node.slots:
            if slot.worker is None or slot.worker not in members:
                yield slot, surplus or _hindrance(slot, node.node, view, kind)


def _hindrance(slot: SlotRecord, node: str, view: JobView, kind: str) -> str:
    if slot.worker is not None and view.ended(slot.worker):
        return "its worker has ended"
    if not is_ready(slot, view):
        return slot.state.replace("_", " ")
    if not fits_kind(slot, kind):
        return f"of kind {slot.kind}, the job is of kind {kind}"
    others = reaching.apart(view, node)
    return f"it and {words.listed(others)} do not reach each other" if others else ""


def out_of_reach(view: JobView) -> str:
    """What keeps waiting workers from joining: the link that has to be proven first."""
    members = {worker.node for worker in view.base.workers} if view.base else set()
    for name in sorted(set(view.nodes) - members):
        ready = any(is_ready(slot, view) for slot in view.nodes[name].record.slots)
        others = reaching.apart(view, name) if ready else ()
        if others:
            return f"node {name} joins once it and {words.listed(others)} reach each other"
    return ""


def misfits(view: JobView, limit: NodeLimit) -> tuple[SlotRecord, ...]:
    """Waiting workers that could join but for their kind."""
    kind = kind_of((), view.spec)
    return tuple(
        slot
        for node in admitted(view, limit)
        for slot in node.slots
        if is_ready(slot, view) and not fits_kind(slot, kind)
    )


def can_start(slot: SlotRecord, view: JobView) -> bool:
    """It waits for ranks, or for a generation that it never formed: it holds nothing yet."""
    return (slot.state == "in_use" and _is_formless(slot, view)) or is_ready(slot, view)


def _is_formless(slot: SlotRecord, view: JobView) -> bool:
    return (
        slot.worker is not None
        and bool(slot.address)
        and not view.ended(slot.worker)
        and not view.holds_state(slot.worker)
    )


def withdrawn_formless(view: JobView) -> tuple[WorkerId, ...]:
    """Workers that shall leave generations that they never formed."""
    members = {worker for commit in view.open for worker in commit.workers}
    return tuple(
        slot.worker
        for _, node in sorted(view.nodes.items())
        for slot in node.record.slots
        if slot.state == "draining" and _is_formless(slot, view)
        if slot.worker is not None and slot.worker in members
    )


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
