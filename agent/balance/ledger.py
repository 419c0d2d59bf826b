"""What the balancer writes down for people, for the next leader and for the level above.

Records change seldom, and only the leader writes them, under its token; no decision waits for one.
"""

from collections import Counter
from statistics import median_low

import msgspec

from easyscale.agent import drafts, gathering
from easyscale.agent.actions import KeepProfile, Transact
from easyscale.agent.balance import doubting, keeping, profile, proposals, swings
from easyscale.agent.balance.planner import Place, step_of
from easyscale.agent.balance.spares import spares
from easyscale.agent.state import State, Turn
from easyscale.balance import (
    ProfileRecord,
    Proposal,
    ProposalsRecord,
    SlowSlot,
    SpeedRecord,
)
from easyscale.model import Commit, Occasion, Record, encode
from easyscale.rendezvous.store import Created, Put
from easyscale.reports import stamp

NOTE = "note "
#: A proposal is made anew when the step that it is held against has changed by more than this.
_STEP_CHANGE = 0.05
#: Whose ranks these plans take or give is no judgement of it.
_MEASURES = frozenset({Occasion.PROFILE, Occasion.PROBE})
#: It is looked whether it has, at most this often.
_PROPOSE_EVERY_S = 2.0


def publish(turn: Turn) -> None:
    """Write what has changed of the records, each at most once."""
    state = turn.state
    base, memory = state.view.base, state.memory
    if base is None or memory.entered != base.generation or state.token is None:
        return
    if memory.replaced_by != base.generation:
        return  # a new leader that has not read yet what it would write over
    _put(turn, state.keys.speed, _speed(turn, base), state.view.speed)
    if turn.now.s - state.proposed_s >= _PROPOSE_EVERY_S:
        turn.set(proposed_s=turn.now.s)
        offered = _proposals(state, base)
        if offered is not None:
            _put(turn, state.keys.proposals, offered, state.view.proposals)
    if memory.scaling is not None:
        record = _dated(memory.scaling.record, turn)
        _put(turn, state.keys.profile, record, state.view.profile)
        is_complete = record.done and bool(record.points) and record == state.view.profile
        if is_complete and record != state.kept_profile:
            turn.set(kept_profile=record)
            turn.do(KeepProfile(record=record))
        return
    kept = _of_an_earlier_launch(state)
    if kept is not None:
        _put(turn, state.keys.profile, kept, state.view.profile)


def published(turn: Turn, name: str, *, succeeded: bool | None) -> None:
    """What was not written is written again with the next view."""
    if not succeeded:
        key = name.removeprefix(NOTE)
        known = {k: v for k, v in turn.state.published.items() if k != key}
        turn.set(published=known)


def _put(turn: Turn, key: str, record: Record, known: Record | None) -> None:
    state = turn.state
    value = encode(record)
    if record == known or state.published.get(key) == value:
        return
    assert state.token is not None
    turn.set(published={**state.published, key: value})
    compares = (Created(state.keys.leader, state.token),)
    turn.do(Transact(name=f"{NOTE}{key}", compares=compares, operations=(Put(key, value),)))


# --- the records -------------------------------------------------------------------------------


def _speed(turn: Turn, base: Commit) -> SpeedRecord:
    state = turn.state
    memory, known = state.memory, state.view.speed
    is_known = known is not None and known.generation == base.generation
    present = drafts.ranks_of(base)
    emptied = {worker for worker, held in present.items() if not held}
    if base.occasion in _MEASURES:
        emptied = (
            {each.worker for each in known.slow if each.emptied} if known is not None else set()
        )
    return SpeedRecord(
        generation=base.generation,
        planned_at=known.planned_at if known is not None and is_known else stamp(turn.now.wall_s),
        planned_at_step=known.planned_at_step if known is not None and is_known else state.step,
        former=memory.former,
        slow=tuple(
            SlowSlot(
                worker=worker,
                since_step=slow.since_step,
                micro_step_s=slow.micro_step_s,
                ratio=slow.ratio,
                emptied=worker in emptied,
                reason=slow.reason,
            )
            for worker, slow in sorted(memory.slow.items())
            if slow.is_told and worker in present
        ),
        tried=memory.tried,
        doubts=doubting.told(memory, known.doubts if known is not None else ()),
        swings=swings.told(memory, state.settings.balance),
        trial=memory.trial,
        max_nodes=state.settings.max_nodes,
    )


def _proposals(state: State, base: Commit) -> ProposalsRecord | None:
    """None while nothing is measured, or what is written still holds."""
    view, spec = state.view, state.view.spec
    slots = drafts.slots_of(view)
    members = [slots[worker] for worker in base.workers if worker in slots]
    if spec is None or not members or not profile.are_measured(members):
        return None
    times = profile.micro_steps(members, state.memory.doubts)
    own = [(slot.kind, times[slot.worker]) for slot in members if slot.worker]
    usual = {kind: median_low(each for of, each in own if of == kind) for kind, _ in own}
    # What waits or is spare need not be given to the job.
    idle = [slot.kind for slot in (*gathering.newcomers(view, state.settings), *spares(view))]
    kinds = proposals.kinds_of([*own, *((kind, usual[kind]) for kind in idle if kind in usual)])
    held = dict(sorted(Counter([*(slot.kind for slot in members), *idle]).items()))
    present = drafts.ranks_of(base)
    step = step_of(Place(worker, times[worker], present[worker]) for worker in times)
    step_s = profile.seconds(step)
    known = view.proposals
    is_of_it = known is not None and known.generation == base.generation and known.slots == held
    if known is not None and is_of_it and abs(known.step_s / step_s - 1) <= _STEP_CHANGE:
        return None
    offers = proposals.propose(kinds, spec.logical_workers, present_step=step)
    return ProposalsRecord(
        generation=base.generation,
        step=state.step,
        slots=held,
        step_s=step_s,
        proposals=tuple(
            Proposal(
                kind=offer.kind,
                slots=offer.slots,
                score=float(offer.score),
                step_s=profile.seconds(offer.step),
                waste_share=float(offer.waste),
            )
            for offer in offers
        ),
    )


def _of_an_earlier_launch(state: State) -> ProfileRecord | None:
    """The profile that this store does not know, since it began empty."""
    kept, spec = state.kept_profile, state.view.spec
    if state.view.profile is not None or kept is None or spec is None:
        return None
    return kept if keeping.is_of(kept, spec) else None


def _dated(record: ProfileRecord, turn: Turn) -> ProfileRecord:
    """The time of its beginning, which a pure decision does not know."""
    known = turn.state.view.profile
    at = known.at if known is not None and known.wish == record.wish else stamp(turn.now.wall_s)
    return msgspec.structs.replace(record, at=at)
