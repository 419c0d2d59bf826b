"""Every slot of a job as status shows it: who runs there, on which ranks, how fast. Pure.

Slots of other nodes are what their agents registered; those of this node are known better.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from statistics import median

import msgspec

from easyscale.agent.balance import spares
from easyscale.agent.gathering import fits_kind
from easyscale.agent.hardware.meter import Reading
from easyscale.agent.state import OwnWorker, State
from easyscale.balance import SlowSlot
from easyscale.job_status import SlotFacts
from easyscale.model import Commit, NodeRecord, SlotRecord, WorkerId
from easyscale.rendezvous.view import JobView


@dataclass(frozen=True, slots=True)
class Closely:
    """What only the agent of a node sees of its slots."""

    state: State
    readings: Mapping[str, Reading] = field(default_factory=dict)


def slots_of(
    view: JobView, commit: Commit | None, *, closely: Closely | None, step_s: float | None
) -> tuple[SlotFacts, ...]:
    """All slots that are offered, and members whose slot is offered no more."""
    facts = [
        _slot(node, slot, view=view, commit=commit, closely=closely)
        for node in _nodes(view, closely)
        for slot in node.slots
    ]
    offered = {(each.node, each.slot) for each in facts}
    if commit is not None:
        facts += [
            _missing(member.worker, view)
            for member in commit.members
            if (member.worker.node, member.worker.slot) not in offered
        ]
    return _compared(sorted(facts, key=lambda each: (each.node, each.slot)), step_s)


def _nodes(view: JobView, closely: Closely | None) -> list[NodeRecord]:
    """The registrations, ours as it is by now."""
    nodes = {name: node.record for name, node in view.nodes.items()}
    if closely is not None and closely.state.record is not None:
        nodes[closely.state.node] = closely.state.record
    return [nodes[name] for name in sorted(nodes)]


def _slot(
    node: NodeRecord,
    slot: SlotRecord,
    *,
    view: JobView,
    commit: Commit | None,
    closely: Closely | None,
) -> SlotFacts:
    worker = slot.worker
    member = next((m for m in commit.members if m.worker == worker), None) if commit else None
    ranks = tuple(member.ranks) if member else ()
    micro_step_s = slot.micro_step_s
    facts = SlotFacts(
        node=node.node,
        slot=slot.slot,
        kind=slot.kind,
        state="spare"
        if spares.is_spare(slot, node, view)
        else _state(slot, view, ranks=ranks, is_member=member is not None),
        ranks=ranks,
        process_rank=commit.process_rank(worker) if commit and worker else None,
        micro_step_s=micro_step_s,
        slow=_slowness(slot, view) is not None,
        note=_why_unused(slot, view) or _why_slow(slot, view),
    )
    if closely is None or closely.state.node != node.node:
        return facts
    own = closely.state.workers.get(slot.slot)
    waiting = closely.state.respawns.get(slot.slot)
    if own is None and waiting is not None and waiting.quarantine:
        facts = msgspec.structs.replace(facts, note=waiting.quarantine)
    reading = closely.readings.get(slot.slot, Reading())
    return _seen_closely(facts, own, reading)


def _state(slot: SlotRecord, view: JobView, *, ranks: tuple[int, ...], is_member: bool) -> str:
    if slot.state == "gone" and slot.worker is not None and not view.ended(slot.worker):
        return "draining"  # the others go on without it, but its worker is still there
    if slot.state in ("draining", "gone", "starting"):
        return slot.state
    if ranks:
        return "in_use"
    if is_member and _slowness(slot, view) is not None:
        return "emptied"
    # A member without ranks stands by with the whole state; who is none any more is on its way out.
    return "standby" if is_member or slot.state == "standby" else "draining"


def _why_unused(slot: SlotRecord, view: JobView) -> str | None:
    spec = view.spec
    if slot.state == "standby" and spec is not None and not fits_kind(slot, spec.kind):
        return f"kind {slot.kind} would give other bits than the job's {spec.kind}"
    return None


def _slowness(slot: SlotRecord, view: JobView) -> SlowSlot | None:
    """What the leader has found of it: one measurement alone calls no slot slow."""
    slow = view.speed.slow if view.speed is not None else ()
    return next((each for each in slow if each.worker == slot.worker), None)


def _why_slow(slot: SlotRecord, view: JobView) -> str | None:
    found = _slowness(slot, view)
    return found.reason if found is not None else None


def _seen_closely(facts: SlotFacts, own: OwnWorker | None, reading: Reading) -> SlotFacts:
    facts = msgspec.structs.replace(
        facts,
        utilisation_share=reading.utilization,
        memory_used_bytes=reading.memory_used_bytes,
        memory_total_bytes=reading.memory_bytes,
    )
    if own is None:
        return facts
    report = own.report
    if report is None:
        return msgspec.structs.replace(facts, pid=own.pid, hung=bool(own.hung))
    return msgspec.structs.replace(
        facts,
        pid=own.pid,
        hung=bool(own.hung),
        note=own.hung or facts.note,
        micro_step_s=report.micro_step_s or facts.micro_step_s,
        wait_s=report.exchange_wait_s,
        data_wait_s=report.data_wait_s,
    )


def _missing(worker: WorkerId, view: JobView) -> SlotFacts:
    """A member whose agent is not registered: ended, or silent."""
    ending = view.gone.get(worker)
    note = ending.how if ending is not None else "its agent is silent"
    return SlotFacts(node=worker.node, slot=worker.slot, kind="", state="gone", note=note)


def _compared(facts: Iterable[SlotFacts], step_s: float | None) -> tuple[SlotFacts, ...]:
    """Hold every slot against its kind, and find the one that the others wait for."""
    slots = list(facts)
    of_kind: dict[str, list[float]] = defaultdict(list)
    for slot in slots:
        if slot.state == "in_use" and slot.micro_step_s:
            of_kind[slot.kind].append(slot.micro_step_s)
    usual = {kind: median(values) for kind, values in of_kind.items()}
    busiest = max((_busy_s(slot) or 0.0 for slot in slots), default=0.0)
    setting = [slot for slot in slots if busiest and _busy_s(slot) == busiest]
    return tuple(
        _against_kind(
            slot,
            usual.get(slot.kind),
            step_s=step_s,
            # One alone sets nothing: nobody waits for it.
            sets_step=slot is setting[0] and len(of_kind[slot.kind]) > 1 if setting else False,
        )
        for slot in slots
    )


def _busy_s(slot: SlotFacts) -> float | None:
    return slot.micro_step_s * len(slot.ranks) if slot.micro_step_s and slot.ranks else None


def _against_kind(
    slot: SlotFacts, usual_s: float | None, *, step_s: float | None, sets_step: bool
) -> SlotFacts:
    micro_step_s, busy_s = slot.micro_step_s, _busy_s(slot)
    if not micro_step_s or busy_s is None:
        return slot
    ratio = micro_step_s / usual_s if usual_s else None
    waits_s = max(0.0, step_s - busy_s) if step_s else None
    return msgspec.structs.replace(
        slot,
        micro_steps_per_s=1 / micro_step_s,
        against_kind=ratio,
        busy_s=busy_s,
        wait_s=slot.wait_s if slot.wait_s is not None else waits_s,
        sets_step=sets_step,
    )
