"""What an agent does with what the store shows: registration, commits, plans, endings. Pure.

Commits are facts: whichever road brings the newest one, it is kept and passed on.
"""

import msgspec
from msgspec.structs import replace

from easyscale.agent import crew, leaving, news, offering, reaching, records, respawns, wishes
from easyscale.agent.actions import Enrol, KillWorker, Write
from easyscale.agent.events import Enrolled, LeaseEnded, Viewed
from easyscale.agent.state import OwnWorker, Phase, Stage, State, Turn
from easyscale.kinds import bits_of, differ_in_processor
from easyscale.messages import StepReport
from easyscale.model import (
    Commit,
    Determinism,
    JobSpec,
    Mode,
    NodeRecord,
    Occasion,
    SlotRecord,
    SlotState,
    Wish,
    encode,
)
from easyscale.pulse import Phase as Pulse
from easyscale.rendezvous.agreement import JobView
from easyscale.reports import EventKind

#: A capability is passed on when it, or the spread of its steps, changed by more than this share.
CAPABILITY_CHANGE = 0.05
#: and what is free of its memory when that changed by more than this.
MEMORY_CHANGE = 0.25
#: A capability is passed on at once when it changed by more than this.
URGENT_CHANGE = 0.15
#: All nodes together write no more often than this for it.
MOST_URGENT_PER_S = 200


# --- registration ------------------------------------------------------------------------------


def enrol(turn: Turn) -> None:
    """Register what this node offers, or what has changed of it."""
    state = turn.state
    if state.spec is None or state.stage is Stage.GONE or not state.slots:
        return
    record = record_of(turn)
    if record == state.record:
        return
    turn.set(record=record)
    turn.do(Enrol(record=record))


def record_of(turn: Turn) -> NodeRecord:
    """Our node as others see it; a measurement alone is passed on now and then only."""
    state = turn.state
    is_profile = state.commit is not None and state.commit.occasion is Occasion.PROFILE
    is_urgent = is_profile or _is_urgent(state)
    slots = tuple(
        _slot_record(state, slot.name, slot.kind, all_anew=is_urgent) for slot in state.slots
    )
    timeouts = state.settings.timeouts
    nodes = len({worker.node for worker in state.commit.workers}) if state.commit else 1
    urgent_s = max(timeouts.capability_urgent_s, nodes / MOST_URGENT_PER_S)
    every_s = timeouts.capability_every_s
    if is_urgent:
        every_s = min(urgent_s, every_s)
    if turn.now.s - state.measured_s < every_s:
        slots = _with_former_measurements(state, slots)
    elif state.record is not None and slots != state.record.slots:
        turn.set(measured_s=turn.now.s)
    entered = [w.entered.generation for w in state.workers.values() if w.entered is not None]
    return NodeRecord(
        node=state.node,
        incarnation=state.identity.incarnation,
        boot_id=state.identity.boot_id,
        host=state.identity.host,
        address=state.identity.address,
        slots=slots,
        commit=None if state.is_confirmed else state.commit,
        formed=max(entered, default=None),
        spec=None if state.is_confirmed else state.spec,
        cut=tuple(sorted(state.cuts)),
        folder=state.identity.folder,
        found=records.brought(state),
        noted=tuple(each for each, wish in state.view.wishes.items() if _is_noted(state, wish)),
        hurries=state.hurry_s is not None and turn.now.s >= state.hurry_s,
    )


def _is_noted(state: State, wish: Wish) -> bool:
    """The slots of this node that it wants empty get no worker any more."""
    if not wishes.means(wish, state.node, state.identity.incarnation):
        return False
    names = {slot.name for slot in state.slots}
    return wish.kind in ("drain", "migrate") and names & set(wish.slots or names) <= state.withdrawn


def _is_urgent(state: State) -> bool:
    """A slot has its first measurement, or one that must move ranks."""
    for name, worker in state.workers.items():
        measured = worker.report.rank_s if worker.report else None
        former = _former(state, name)
        known = former.rank_s if former else None
        if measured and (not known or _change(measured, known) >= URGENT_CHANGE):
            return True
    return False


def _is_news(report: StepReport, former: SlotRecord | None, measured: float, known: float) -> bool:
    """The speed has changed, or how surely it is known."""
    spread = former.spread if former is not None else None
    surer = abs((report.micro_step_spread or 0.0) - (spread or 0.0)) >= CAPABILITY_CHANGE
    return surer or _change(measured, known) >= CAPABILITY_CHANGE


def _change(measured: float, known: float) -> float:
    return max(measured, known) / min(measured, known) - 1


def _slot_record(state: State, name: str, kind: str, *, all_anew: bool) -> SlotRecord:
    """A slot as it is now; a small change of its speed is left out unless another one is urgent."""
    worker = state.workers.get(name)
    if worker is None:
        return SlotRecord(name, kind or state.zygote_kind or "", None, _empty_state(state, name))
    report, former = worker.report, _former(state, name)
    record = SlotRecord(
        slot=name,
        kind=worker.kind or kind or state.zygote_kind or "",
        worker=worker.id,
        state=_slot_state(state, worker),
        address=worker.address,
        has_state=worker.entered is not None and worker.entered.has_state,
        withdrawn=state.why_withdrawn.get(name, ""),
    )
    record = _with_memory(record, worker, former)
    measured = report.rank_s if report is not None else None
    if report is None or not measured:
        return _with_measurement(record, former)
    known = former.rank_s if former is not None and former.worker == worker.id else None
    if known and not (all_anew or _is_news(report, former, measured, known)):
        return _with_measurement(record, former)
    return msgspec.structs.replace(
        record,
        micro_step_s=report.micro_step_s,
        spread=report.micro_step_spread,
        data_wait_s=report.micro_step_data_wait_s,
        recent_s=report.recent_rank_s,
    )


def _with_memory(record: SlotRecord, worker: OwnWorker, former: SlotRecord | None) -> SlotRecord:
    """The same slot with what is free there and what the job takes; a small change is no news."""
    report = worker.report
    now = msgspec.structs.replace(
        record,
        free_bytes=report.free_bytes if report is not None else worker.free_bytes,
        partial_bytes=report.partial_bytes if report is not None else None,
        taken_bytes=report.taken_bytes if report is not None else None,
    )
    if former is None or former.worker != record.worker or _is_other_memory(former, now):
        return now
    return _with_former_memory(now, former)


def _with_former_memory(record: SlotRecord, former: SlotRecord) -> SlotRecord:
    return msgspec.structs.replace(
        record,
        free_bytes=former.free_bytes,
        partial_bytes=former.partial_bytes,
        taken_bytes=former.taken_bytes,
    )


def _is_other_memory(former: SlotRecord, now: SlotRecord) -> bool:
    """It has changed by as much as may change what fits, whatever the speed does."""
    return (
        now.partial_bytes != former.partial_bytes
        or _differs(former.free_bytes, now.free_bytes)
        or _differs(former.taken_bytes, now.taken_bytes)
    )


def _differs(one: int | None, other: int | None) -> bool:
    if one is None or other is None:
        return one is not other
    return abs(one - other) > MEMORY_CHANGE * max(one, other)


def _with_measurement(record: SlotRecord, former: SlotRecord | None) -> SlotRecord:
    """The same slot with what was measured before; nothing of another process on it."""
    if former is not None and former.worker != record.worker:
        former = None
    return msgspec.structs.replace(
        record,
        micro_step_s=former.micro_step_s if former else None,
        spread=former.spread if former else None,
        data_wait_s=former.data_wait_s if former else None,
        recent_s=former.recent_s if former else None,
    )


def _empty_state(state: State, name: str) -> SlotState:
    out = name in state.withdrawn or respawns.is_out(state, name)
    return "gone" if out else "starting"


def _slot_state(state: State, worker: OwnWorker) -> SlotState:
    if worker.stopped or worker.phase is Phase.LEAVING:
        return "gone"
    if worker.id.slot in state.withdrawn:
        return "draining"
    match worker.phase:
        case Phase.STANDBY:
            return "standby"
        case Phase.MEMBER | Phase.FINISHED:
            return "in_use"
        case _:
            return "starting"


def _former(state: State, name: str) -> SlotRecord | None:
    slots = state.record.slots if state.record else ()
    return next((slot for slot in slots if slot.slot == name), None)


def _with_former_measurements(
    state: State, slots: tuple[SlotRecord, ...]
) -> tuple[SlotRecord, ...]:
    return tuple(_as_before(slot, _former(state, slot.slot)) for slot in slots)


def _as_before(record: SlotRecord, former: SlotRecord | None) -> SlotRecord:
    """The same slot with all that was measured before; a newcomer's memory is news at once."""
    record = _with_measurement(record, former)
    if former is None or former.worker != record.worker or former.free_bytes is None:
        return record
    return _with_former_memory(record, former)


def lease_ended(turn: Turn, event: LeaseEnded) -> None:
    """Register anew with the newest commit we know: the store may have forgotten it."""
    turn.set(enrolled=None, is_confirmed=turn.state.commit is None, record=None)
    turn.because("registers again", event.reason)


def enrolled(turn: Turn, event: Enrolled) -> None:
    """The registration stands: everything that hung on a former lease is written again."""
    state = turn.state
    again = state.first_revision is not None
    # A store that was emptied counts anew: what is newer than our registration must stay so.
    first = min(state.first_revision or event.create_revision, event.create_revision)
    turn.set(enrolled=event.create_revision, first_revision=first)
    if not again:
        return
    for worker in state.workers.values():
        crew.write_leased(turn, worker)
    for worker_id, ending in state.buried.items():
        key = state.keys.gone_worker(worker_id)
        turn.do(Write(key=key, value=encode(ending), leased=False))


# --- views -------------------------------------------------------------------------------------


def viewed(turn: Turn, event: Viewed) -> None:
    """Take in what the store shows now, whatever was missed between."""
    former, view = turn.state.view, event.view
    turn.set(view=view)
    newest = view.newest
    if newest is not None:
        adopt(turn, newest, road="the store")
    if view.spec is not None:
        _take_spec(turn, view.spec)
    _confirm(turn, view)
    reaching.judge(turn)
    plan = view.open_plan
    if plan is not None:
        crew.tell_plan(turn, plan)
    _notice_endings(turn, former, view)
    if former.revision:
        news.tell_speeds(turn, former, view)
    _notice_wishes(turn, view)
    records.remember_snapshots(turn)
    records.delete_superseded(turn)
    records.register_snapshots(turn)
    leaving.notice_outcome(turn)


def _take_spec(turn: Turn, spec: JobSpec) -> None:
    """What the store says the job is, unless our workers already train by another word of it."""
    state = turn.state
    known = state.spec
    if known is not None and known.token != spec.token:
        at_work = (Phase.MEMBER, Phase.FINISHED)
        if any(w.entered is not None and w.phase in at_work for w in state.workers.values()):
            return  # a store that came back empty was filled by somebody else: ours is offered
        asked, stands = _fixed(known), _fixed(spec)
        if asked != stands:
            leaving.refuse(turn, f"this launch asks for {asked}, the job has {stands}")
            return
        # Also who was told of a commit and has not entered it: nobody would meet it any more.
        without_state = (Phase.FORKING, Phase.STARTING, Phase.STANDBY, Phase.MEMBER)
        crew.stop_all(turn, "the job goes on under another token", only=without_state)
        turn.because("takes up the job as those know it who run it")
    turn.set(spec=spec)


def _fixed(spec: JobSpec) -> str:
    """What is fixed for the job's life, in words."""
    return (
        f"{spec.logical_workers} logical workers, seed {spec.seed}, {spec.determinism},"
        f" {spec.threads_per_worker} threads a worker"
    )


def _confirm(turn: Turn, view: JobView) -> None:
    """Offer our commit while the store does not know it, or anything newer."""
    commit = turn.state.commit
    if commit is None or view.newest is None:
        known = commit is None
    else:
        known = view.newest.generation >= commit.generation
    turn.set(is_confirmed=known)


def adopt(turn: Turn, commit: Commit, *, road: str) -> None:
    """Keep the newest commit and pass it to our workers."""
    state = turn.state
    known = state.commit
    if known is not None and commit.generation <= known.generation:
        if commit.generation == known.generation and commit.digest != known.digest:
            turn.because(f"{commit.generation.label} ignored", "same number, other content")
        return
    earlier = [c for g, c in state.view.commits.items() if g < commit.generation]
    former = known or max(earlier, key=lambda c: c.generation, default=None)
    if former is not None and former.pauses:
        former = state.former
    turn.set(commit=commit, former=former, untold=commit)
    turn.because(f"{commit.generation.label} {commit.mode} by {road}", commit.reason)
    crew.tell_commit(turn, commit)
    ours = former.workers if former is not None else ()
    if commit.pauses:
        turn.set(untold=None)
        is_told = state.stage is Stage.LEAVING and state.signal is not None
        if not is_told and any(worker.id in ours for worker in turn.state.workers.values()):
            reason = f"pausing at the next step with a snapshot: {commit.reason}"
            news.announce(turn, EventKind.DRAINING, reason)
    elif not any(worker.id in commit.workers for worker in turn.state.workers.values()):
        turn.set(untold=None)
        if former is not None:
            news.tell_commit(turn, commit, pause_s=None)


def _notice_endings(turn: Turn, former: JobView, view: JobView) -> None:
    """Tell our members and people of workers elsewhere that ended."""
    fresh = [w for w in view.gone_order if w not in former.gone and w.node != turn.state.node]
    if former.revision == 0:
        return  # what ended before we came is no news
    crew.tell_lost(turn, fresh)
    for worker in fresh:
        ending = view.gone[worker]
        if not (ending.finished or ending.drained) and ending.failure is not None:
            news.tell_lost(turn, worker, ending)


def _notice_wishes(turn: Turn, view: JobView) -> None:
    """Withdraw the slots of this node that somebody wants empty."""
    state = turn.state
    for wish_id, wish in view.wishes.items():
        is_meant = wishes.means(wish, state.node, state.identity.incarnation)
        if is_meant and wish.kind == "devices" and not wish.refused:
            offering.seek(turn, wish_id, wish)
        if not is_meant or wish.kind not in ("drain", "migrate"):
            continue
        if wish.kind == "migrate" and not _has_moved(state, wish):
            continue  # what it holds trains on until the others can take it over
        names = {slot.name for slot in state.slots}
        asked = frozenset(wish.slots or names) & names
        if asked - turn.state.withdrawn:
            offering.withdraw(turn, asked, wish.by or "a wish")
        if not wish.slots:
            leaving.leave(turn, wish.by or "a wish", signal=None)


def _has_moved(state: State, wish: Wish) -> bool:
    """No slot that the wish names is a member's any more, by the newest commit."""
    commit = state.commit
    return commit is not None and not any(wishes.moves_away(wish, w) for w in commit.workers)


def notice_kinds(turn: Turn) -> None:
    """Say once why a slot of another kind than the job's holds nothing."""
    state = turn.state
    spec = state.spec
    if spec is None or not spec.kind:
        return
    for name, worker in sorted(state.workers.items()):
        other = worker.phase is Phase.STANDBY and bits_of(worker.kind) not in ("", spec.kind)
        if other and name not in state.told_kinds:
            turn.set(told_kinds=turn.state.told_kinds | {name})
            news.announce(
                turn,
                EventKind.NOTE,
                f"{worker.id.place} stays standby: of kind {worker.kind}, the job is of kind"
                f" {spec.kind}{_how_to_mix(worker.kind, spec)}",
            )


def _how_to_mix(kind: str, spec: JobSpec) -> str:
    """What a person could do about it, or why nothing."""
    if spec.determinism is Determinism.HETEROGENEOUS:
        return "; --determinism heterogeneous mixes processors of one architecture, and no more"
    mixes = differ_in_processor(kind, spec.kind)
    return "; --determinism heterogeneous mixes processors" if mixes else ""


def kill_excluded(turn: Turn) -> None:
    """A worker that a newer generation excludes, out of a wait it must leave, has a short grace."""
    state, timeouts = turn.state, turn.state.settings.timeouts
    commit = state.commit
    if commit is None or commit.pauses:
        return
    for worker in tuple(state.workers.values()):
        grace_s, since_s = timeouts.fence_grace_s, worker.told_s
        if commit.mode is Mode.BOUNDARY:
            # It waits in a broken group, in case that nobody else has the state: the leader, who
            # would know, has had the time to call it back, and it to write that state down.
            if worker.broken is None or state.away_s is not None or _writes_a_snapshot(worker):
                continue
            grace_s = timeouts.evict_after_s
            since_s = max(worker.told_s, worker.broken_s, state.back_s)
        late = turn.now.s - since_s >= grace_s
        if worker.phase is Phase.LEAVING and late and worker.killed_s is None:
            reason = f"fenced by {commit.generation.label}"
            turn.put_worker(replace(worker, stopped=reason, killed_s=turn.now.s))
            turn.do(KillWorker(worker=worker.id, reason=reason))


def _writes_a_snapshot(worker: OwnWorker) -> bool:
    """Which may take minutes; one that hangs there is found by the watchdog."""
    return worker.beat is not None and worker.beat.phase is Pulse.SNAPSHOT
