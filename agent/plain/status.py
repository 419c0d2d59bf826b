"""A plain or packed job as status shows it; what only elastic jobs have is None. Pure.

Its generations are rounds, its ranks are those of torchrun.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from easyscale.agent.doors.chronicle import Told
from easyscale.agent.doors.status import MOST_CHANGES
from easyscale.agent.hardware.meter import Reading
from easyscale.agent.plain.state import Phase, State
from easyscale.agent.plain.values import Member, Offer, ReportState, Round, RoundPhase, Sight, Terms
from easyscale.agent.plain.verdict import SIGNAL_BASE
from easyscale.job_status import (
    Budget,
    Changes,
    JobFacts,
    JobStatus,
    SlotFacts,
    StepTime,
    StoreFacts,
    count_slots,
)
from easyscale.model import JobState
from easyscale.reports import EventKind, stamp

_COUNTED = (EventKind.JOINED, EventKind.LOST, EventKind.DRAINED)
#: These have a line of their own where they are told.
_UNSEEN = frozenset({EventKind.MET, EventKind.WAITING})


@dataclass(frozen=True, slots=True)
class Own:
    """What an agent of the job knows beyond what its nodes have told each other."""

    state: State
    #: On the clock of the state.
    now_s: float
    told: Told
    user: str = ""
    readings: Mapping[str, Reading] = field(default_factory=dict)


def status_of(
    job: str, sight: Sight, terms: Terms, *, wall_s: float, own: Own | None = None
) -> JobStatus:
    """Everything that can be said of a job now."""
    slots = () if sight.outcome is not None else slots_of(sight, own)
    return JobStatus(
        at=stamp(wall_s),
        job=_facts(job, sight, terms, wall_s=wall_s, own=own),
        slots=slots,
        counts=count_slots(slots),
        step_time=StepTime(measured_s=None, predicted_s=None),
        changes=_changes(own),
        budget=Budget(used=_restarts(sight), limit=terms.max_restarts),
        store=_store(own),
    )


def _facts(job: str, sight: Sight, terms: Terms, *, wall_s: float, own: Own | None) -> JobFacts:
    elapsed_s = own.now_s - own.state.began_s if own is not None else None
    state = state_of(sight, terms, own)
    return JobFacts(
        id=job,
        state=state,
        mode="plain" if terms.logical_workers is None else "packed",
        logical_workers=terms.logical_workers,
        determinism=None,
        era=1 if sight.round else 0,
        generation=sight.round.number if sight.round else 0,
        step=None,
        steps=None,
        epoch=None,
        epochs=None,
        started=stamp(wall_s - elapsed_s) if elapsed_s is not None else None,
        elapsed_s=elapsed_s,
        left_s=None,
        steps_per_s=None,
        samples_per_s=None,
        exit_code=_exit_code(sight, own),
        user=(own.user or None) if own is not None else None,
        note=_note(sight, terms, state),
    )


def state_of(sight: Sight, terms: Terms, own: Own | None) -> JobState:
    """What the job is doing."""
    outcome, round_ = sight.outcome, sight.round
    if outcome is not None:
        if outcome.is_stop:
            return JobState.STOPPED
        return JobState.FINISHED if outcome.is_finished else JobState.FAILED
    if sight.stop is not None or (own is not None and own.state.phase is Phase.LEAVING):
        return JobState.DRAINING
    if round_ is None:
        is_short = len(sight.offers) < terms.min_nodes
        return JobState.WAITING if is_short else JobState.STARTING
    if round_.phase is RoundPhase.STOPPING or (own is not None and _is_starting(own)):
        return JobState.STARTING
    return JobState.RUNNING


def _is_starting(own: Own) -> bool:
    state = own.state
    if state.phase is not Phase.RUNNING:
        return False
    return any(worker.pid is None and not worker.has_ended for worker in state.workers.values())


def _exit_code(sight: Sight, own: Own | None) -> int | None:
    if sight.outcome is None:
        return None
    if own is not None and own.state.signal is not None:
        return SIGNAL_BASE + own.state.signal
    return sight.outcome.exit_code


def _note(sight: Sight, terms: Terms, state: JobState) -> str | None:
    outcome, round_ = sight.outcome, sight.round
    if outcome is not None:
        headline = outcome.fault.headline if outcome.fault is not None else ""
        return "; ".join(filter(None, (headline, outcome.reason))) or None
    if state is JobState.WAITING:
        return f"{len(sight.offers)} of {terms.min_nodes} nodes are there"
    if sight.stop is not None:
        return f"stopped by {sight.stop.by or 'a wish'}"
    if state is JobState.RUNNING:
        return None
    return (round_.reason or None) if round_ is not None else None


def _restarts(sight: Sight) -> int:
    if sight.outcome is not None:
        return sight.outcome.restarts
    return sight.round.restarts if sight.round is not None else 0


def _changes(own: Own | None) -> Changes:
    if own is None:
        return Changes(count=0, paused_s=None, steps_lost=None)
    told = [event for event in reversed(own.told.events) if event.event not in _UNSEEN]
    return Changes(
        count=sum(own.told.counts.get(str(kind), 0) for kind in _COUNTED),
        paused_s=None,
        steps_lost=None,
        last=tuple(told[:MOST_CHANGES]),
    )


def _store(own: Own | None) -> StoreFacts | None:
    """None for a job of one node, which has no store."""
    if own is None:
        return StoreFacts(reachable=True, silent_s=0.0)
    if not own.state.settings.meets:
        return None
    away_s = own.state.away_since_s
    if away_s is None:
        return StoreFacts(reachable=True, silent_s=0.0)
    silent_s = own.now_s - away_s
    return StoreFacts(reachable=False, silent_s=silent_s, refuses=own.state.refuses)


# --- slots ---------------------------------------------------------------------------------------


def slots_of(sight: Sight, own: Own | None) -> tuple[SlotFacts, ...]:
    """The places of the round's nodes, then those of nodes that are not in it."""
    round_ = sight.round
    members = round_.members if round_ is not None else ()
    slots = [
        _of_member(sight, round_, member, place, own=own)
        for member in members
        for place in dict.fromkeys(member.offered)
        if round_ is not None
    ]
    known = {(slot.node, slot.slot) for slot in slots}
    state = "starting" if round_ is None else "standby"
    slots += [
        _closely(_empty(offer, place, state), (), own)
        for offer in sight.offers
        for place in offer.places
        if (offer.node, place) not in known
    ]
    return tuple(sorted(slots, key=lambda slot: (slot.node, slot.slot)))


def _empty(offer: Offer, place: str, state: str) -> SlotFacts:
    return SlotFacts(node=offer.node, slot=place, kind="", state=state)


def _of_member(
    sight: Sight, round_: Round, member: Member, place: str, *, own: Own | None
) -> SlotFacts:
    local_ranks = tuple(n for n, each in enumerate(member.places) if each == place)
    ranks = tuple(member.first_rank + n for n in local_ranks)
    state, note = _state_of(sight, round_, member, has_ranks=bool(ranks))
    facts = SlotFacts(
        node=member.node,
        slot=place,
        kind="",
        state=state,
        ranks=ranks if state in ("in_use", "draining", "starting") else (),
        process_rank=ranks[0] if len(ranks) == 1 else None,
        note=note,
    )
    return _closely(facts, local_ranks, own)


def _state_of(
    sight: Sight, round_: Round, member: Member, *, has_ranks: bool
) -> tuple[str, str | None]:
    """Of a slot, by what its node has told all others."""
    report = sight.reports.get(member.node)
    if not has_ranks:
        return "standby", None
    if member.node in round_.lost:
        return "gone", "its agent has ended, or nobody hears it"
    if report is not None and report.is_over:
        if report.state is ReportState.DONE:
            return "standby", "its workers have ended well"
        failed = report.fault is not None and report.fault.headline
        return "standby", failed or "its workers have ended"
    return ("draining" if round_.phase is RoundPhase.STOPPING else "in_use"), None


def _closely(slot: SlotFacts, local_ranks: tuple[int, ...], own: Own | None) -> SlotFacts:
    """The same with what only the agent of its node knows."""
    if own is None or own.state.node != slot.node:
        return slot
    reading = own.readings.get(slot.slot, Reading())
    slot = msgspec.structs.replace(
        slot,
        utilisation_share=reading.utilization,
        memory_used_bytes=reading.memory_used_bytes,
        memory_total_bytes=reading.memory_bytes,
    )
    workers = [own.state.workers[n] for n in local_ranks if n in own.state.workers]
    running = [worker for worker in workers if not worker.has_ended]
    pids = [worker.pid for worker in running if worker.pid is not None]
    if slot.state != "in_use" or not workers:
        return slot
    if not running:
        ended = "its worker has ended" if len(workers) == 1 else "its workers have ended"
        return msgspec.structs.replace(slot, state="standby", ranks=(), note=ended)
    state = "in_use" if len(pids) == len(running) else "starting"
    pid = pids[0] if len(pids) == 1 and len(running) == 1 else None
    return msgspec.structs.replace(slot, state=state, pid=pid)
