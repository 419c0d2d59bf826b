"""The workers of this node: which run, what they say, how they ended. Pure.

A worker that ends is proof for the whole job: its ending goes to `gone/` whatever else happens.
"""

from collections.abc import Iterable
from typing import assert_never

from msgspec.structs import replace

from easyscale.agent import closing, news, reaching, records, respawns, words
from easyscale.agent.actions import Fork, StartZygote, StopWorker, Tell, Write
from easyscale.agent.balance import limits
from easyscale.agent.cause import failure_of, how_it_ended
from easyscale.agent.events import ForkFailed, Slot, WorkerExited, WorkerForked, ZygoteLost
from easyscale.agent.state import Entered, OwnWorker, Phase, Stage, State, Turn
from easyscale.messages import (
    Broken,
    CommitSeen,
    Committed,
    Drained,
    Failure,
    FencedOff,
    Finished,
    FromWorker,
    Initialised,
    Lost,
    Note,
    Planned,
    Ready,
    Registered,
    SnapshotFailed,
    SnapshotRejected,
    SnapshotWritten,
    StepReport,
)
from easyscale.messages import Entered as SaidEntered
from easyscale.model import (
    BrokenReport,
    Commit,
    Ending,
    Entry,
    Mode,
    Plan,
    Position,
    Readiness,
    WorkerFailure,
    WorkerId,
    encode,
)
from easyscale.reports import EventKind

#: Endings that are kept to be written again.
MOST_BURIED = 100

# --- starting ----------------------------------------------------------------------------------


def was_member(state: State) -> bool:
    """Workers of this agent trained in the generation that the pause ended."""
    mine = (state.node, state.identity.incarnation)
    former = state.former.workers if state.former is not None else ()
    return any((worker.node, worker.incarnation) == mine for worker in former)


def spawn(turn: Turn) -> None:
    """Fork a worker for every slot that may have one and has none, and one for the next slot.

    More slots than the job has ranks are spare: one of them has a worker for each that is slow
    here, to take its ranks over, and one that a migration names.
    """
    state = turn.state
    if state.stage is not Stage.RUNNING or state.zygote_kind is None or state.spec is None:
        return
    if state.commit is not None and state.commit.pauses and was_member(state):
        return  # whoever came later goes on with the job
    most = state.spec.logical_workers + (1 if state.settings.standby else 0) + _slow(state)
    for slot in (*state.slots, *_next_slot(state)):
        is_full = len(turn.state.workers) >= most and not _is_awaited(state, slot.name)
        if (
            slot.name in turn.state.workers
            or slot.name in state.withdrawn
            or is_full
            or not respawns.may_start(state, slot.name, turn.now.s)
        ):
            continue
        number = state.spawns.get(slot.name, 0) + 1
        worker = WorkerId(state.node, state.identity.incarnation, slot.name, number)
        turn.set(spawns={**turn.state.spawns, slot.name: number})
        turn.put_worker(OwnWorker(worker, Phase.FORKING, turn.now.s, kind=slot.kind))
        turn.do(Fork(worker=worker))


def _slow(state: State) -> int:
    """How many workers here the leader has found to be slow."""
    told = state.view.speed.slow if state.view.speed is not None else ()
    own = {worker.id for worker in state.workers.values()}
    return sum(each.worker in own for each in told)


def _is_awaited(state: State, slot: str) -> bool:
    """Somebody has asked that what another place holds moves to this slot."""
    wishes = state.view.wishes.values()
    return any(w.kind == "migrate" and w.target == f"{state.node}/{slot}" for w in wishes)


def _next_slot(state: State) -> tuple[Slot, ...]:
    """The CPU slot that would be added next: with --standby its worker waits, and is not offered.

    It starts once those of this node train. Which GPU would be next, nobody knows.
    """
    count = len(state.slots)
    is_wanted = state.settings.standby and not state.withdrawn
    trains = any(worker.entered is not None for worker in state.workers.values())
    most = state.spec.logical_workers if state.spec is not None else 0
    if not (is_wanted and trains) or count >= most:
        return ()
    if {slot.name for slot in state.slots} != {f"cpu:{index}" for index in range(count)}:
        return ()
    return (Slot(name=f"cpu:{count}", kind=state.slots[0].kind),)


def forked(turn: Turn, event: WorkerForked) -> None:
    worker = turn.own(event.worker)
    if worker is not None:
        # FORKING -> STARTING: the process runs; register is next
        turn.put_worker(replace(worker, phase=Phase.STARTING, pid=event.pid, since_s=turn.now.s))


def fork_failed(turn: Turn, event: ForkFailed) -> None:
    worker = turn.own(event.worker)
    if worker is None:
        return
    failure = WorkerFailure(
        type="fork failed",
        headline=f"no worker on {event.worker.place}: {event.reason}",
        place="",
        rank=None,
        step=0,
        generation=None,
        pid=None,
        log="",
        job_step=turn.state.job_step,
    )
    _bury(turn, worker, Ending(how=event.reason, failure=failure))
    respawns.tell_quarantine(turn, worker)


def zygote_lost(turn: Turn, event: ZygoteLost) -> None:
    """All workers died with it; what the supervisor still tells of them finds nobody."""
    for worker in tuple(turn.state.workers.values()):
        _bury(turn, worker, Ending(how=event.reason, pid=worker.pid, step=worker.step))
    state = turn.state
    had_started = state.zygote_kind is not None
    turn.set(zygote_kind=None)
    if state.stage is not Stage.RUNNING:
        turn.because("zygote lost", event.reason)
    elif had_started and state.zygote_losses < state.settings.max_restarts:
        turn.set(zygote_losses=state.zygote_losses + 1)
        turn.do(StartZygote())
        turn.because("starts the zygote again", event.reason)
        news.announce(
            turn, EventKind.NOTE, f"the zygote ended by {event.reason}; another one is started"
        )
    else:
        turn.set(lost_zygote=event.reason)
        turn.because("no worker can start here", event.reason)


# --- telling -----------------------------------------------------------------------------------


def tell_plan(turn: Turn, plan: Plan) -> None:
    """Each of our workers that the plan names hears it once."""
    for worker in tuple(turn.state.workers.values()):
        known = worker.plan is not None and worker.plan >= plan.generation
        if worker.id in plan.workers and not known and not worker.stopped:
            waits = worker.plan is not None and worker.plan != worker.ready
            asked_s = worker.asked_s if waits else turn.now.s
            turn.put_worker(replace(worker, plan=plan.generation, asked_s=asked_s))
            turn.do(Tell(worker=worker.id, message=Planned(plan=plan)))


def tell_commit(turn: Turn, commit: Commit) -> None:
    """Each of our workers that runs, or that the commit names, hears it once."""
    for worker in tuple(turn.state.workers.values()):
        if worker.told is not None and worker.told >= commit.generation:
            continue
        member = next((m for m in commit.members if m.worker == worker.id), None)
        if member is not None:
            phase = Phase.FINISHED if worker.finished else Phase.MEMBER
            turn.put_worker(
                replace(
                    worker,
                    phase=phase,
                    told=commit.generation,
                    told_s=turn.now.s,
                    ranks=member.ranks,
                )
            )
        elif worker.phase in (Phase.MEMBER, Phase.FINISHED):
            # MEMBER -> LEAVING: the job goes on without it; what never formed waits again
            left = Phase.LEAVING if worker.entered is not None else Phase.STANDBY
            if left is Phase.LEAVING and commit.mode is Mode.NOW and not worker.stopped:
                reaching.dropped(turn, commit)
            phase = left if worker.phase is Phase.MEMBER else Phase.FINISHED
            changed = replace(worker, phase=phase, told=commit.generation, told_s=turn.now.s)
            turn.put_worker(changed)
            if phase is Phase.STANDBY and worker.id.slot in turn.state.withdrawn:
                stop(turn, changed, "slot withdrawn")
        else:
            continue
        turn.do(Tell(worker=worker.id, message=Committed(commit=commit)))


def tell_lost(turn: Turn, ended: Iterable[WorkerId]) -> None:
    """Exchanges with these cannot complete: members that wait in one are let go.

    Who leaves may wait for one of them too, in the generation before.
    """
    lost = tuple(sorted(ended))
    if not lost:
        return
    for worker in turn.state.workers.values():
        if worker.phase in (Phase.MEMBER, Phase.LEAVING) and worker.id not in lost:
            turn.do(Tell(worker=worker.id, message=Lost(workers=lost)))


# --- listening ---------------------------------------------------------------------------------


def hear(turn: Turn, worker: OwnWorker, message: FromWorker) -> CommitSeen | None:
    """Take in what a worker says; a commit it brings is returned, since it concerns all."""
    match message:
        case Initialised(pid=pid, kind=kind, free_bytes=free):
            kind = kind or worker.kind
            turn.put_worker(replace(worker, initialised=True, pid=pid, kind=kind, free_bytes=free))
        case Registered(address=address):
            # STARTING -> STANDBY: it waits for ranks
            turn.put_worker(
                replace(worker, phase=Phase.STANDBY, address=address, since_s=turn.now.s)
            )
        case Ready(generation=generation):
            turn.put_worker(replace(worker, ready=generation, asked_s=turn.now.s))
            write_leased(turn, replace(worker, ready=generation, entered=None, broken=None))
        case SaidEntered():
            _enter(turn, worker, message)
        case Broken(generation=generation):
            turn.put_worker(replace(worker, broken=message, broken_s=turn.now.s))
            write_leased(turn, replace(worker, broken=message, entered=None, ready=None))
            reaching.suspect(turn, message)
            turn.because(f"{worker.id.place} is broken in {generation.label}", message.reason)
        case StepReport():
            take_report(turn, worker.id, message)
        case SnapshotWritten():
            records.note_snapshot(turn, worker, message)
        case SnapshotFailed(step=step, reason=reason):
            kept = news.newest_snapshot(turn)
            news.announce(
                turn,
                EventKind.SNAPSHOT_FAILED,
                reason,
                at_step=step,
                node=worker.id.node,
                kept_step=kept.step if kept else None,
            )
        case SnapshotRejected():
            records.reject_snapshot(turn, worker.id, message)
        case Note(text=text):
            news.announce(turn, EventKind.NOTE, text)
        case Failure():
            turn.put_worker(replace(worker, failure=message))
        case Finished():
            # MEMBER -> FINISHED: the script's tail runs
            turn.put_worker(
                replace(worker, phase=Phase.FINISHED, finished=message, last_step=message.step)
            )
        case Drained(step=step):
            turn.put_worker(replace(worker, phase=Phase.LEAVING, leaves=True, last_step=step))
        case FencedOff():
            turn.put_worker(replace(worker, phase=Phase.LEAVING, leaves=True))
        case CommitSeen():
            return message
        case _:
            assert_never(message)
    return None


def _enter(turn: Turn, worker: OwnWorker, said: SaidEntered) -> None:
    entered = Entered(said.generation, said.position, said.has_state, said.pause_s, said.step)
    worker = replace(worker, entered=entered, broken=None, ready=None)
    turn.put_worker(worker)
    if turn.state.commit is not None and turn.state.commit.generation == said.generation:
        reaching.met(turn, turn.state.commit)
    write_leased(turn, worker)
    commit = turn.state.untold
    if commit is not None and commit.generation == said.generation:
        turn.set(untold=None)
        news.tell_commit(turn, commit, pause_s=said.pause_s)


def write_leased(turn: Turn, worker: OwnWorker) -> None:
    """Say in the store what the worker formed, holds and suffers, as far as it stands."""
    keys = turn.state.keys
    if (entered := worker.entered) is not None:
        entry = Entry(
            position=Position(entered.position),
            has_state=entered.has_state,
            pause_s=entered.pause_s,
        )
        key = keys.entry(entered.generation, worker.id)
        turn.do(Write(key=key, value=encode(entry), leased=True))
    if worker.ready is not None:
        held = encode(Readiness(address=worker.address))
        turn.do(Write(key=keys.ready(worker.ready, worker.id), value=held, leased=True))
    if (broken := worker.broken) is not None:
        report = BrokenReport(
            position=broken.position, suspects=broken.suspects, reason=broken.reason
        )
        key = keys.broken(broken.generation, worker.id)
        turn.do(Write(key=key, value=encode(report), leased=True))


def take_report(turn: Turn, worker_id: WorkerId, report: StepReport) -> None:
    """Keep where a worker says it is; main's is shown and recorded."""
    known = turn.own(worker_id)
    if known is None:
        return  # it ended meanwhile
    worker = replace(known, report=report)
    turn.put_worker(worker)
    respawns.note_progress(turn, worker, report)
    if turn.state.zygote_losses:
        turn.set(zygote_losses=0)
    main = turn.state.main_worker
    if main is None or main.id == worker.id:
        turn.set(last_report=report)
        closing.show_progress(turn, worker)
        records.record_progress(turn)


# --- ending ------------------------------------------------------------------------------------


def exited(turn: Turn, event: WorkerExited) -> None:
    """Say how it ended, to the store and to people; its slot is free again."""
    worker = turn.own(event.worker)
    if worker is None:
        return
    if event.beat is not None:
        worker = replace(worker, beat=event.beat)
    ending = _ending(turn, worker, event)
    _bury(turn, worker, ending)
    in_order = ending.finished or ending.drained or (worker.stopped and not worker.hung)
    if not in_order:
        news.tell_lost(turn, worker.id, ending)
        respawns.tell_quarantine(turn, worker)
        tell_lost(turn, [worker.id])


def _ending(turn: Turn, worker: OwnWorker, event: WorkerExited) -> Ending:
    said = worker.finished
    done = said is not None and (event.exit_code == 0 or not said.is_main)
    excluded = worker.phase is Phase.LEAVING
    drained = not done and (worker.leaves or excluded) and worker.failure is None
    blameless = done or drained or (bool(worker.stopped) and not worker.hung)
    failure = None
    if not blameless:
        job_step = max(turn.state.job_step, worker.step)
        failure = failure_of(
            worker,
            event,
            settings=turn.state.settings,
            job_step=job_step,
            survived=respawns.others_train(turn.state, worker.id.slot),
        )
    how = worker.stopped if blameless and worker.stopped else how_it_ended(worker, event)
    held = worker.ranks if worker.phase is Phase.MEMBER else ()
    return Ending(
        how=how + limits.what_fits(failure, worker.id.place, len(held)),
        exit_code=event.exit_code,
        signal=event.signal,
        pid=event.pid,
        ranks=held,
        step=worker.step,
        finished=done,
        digest=said.digest if said else "",
        is_main=said.is_main if said else None,
        drained=drained,
        failure=failure,
    )


def _bury(turn: Turn, worker: OwnWorker, ending: Ending) -> None:
    state = turn.state
    key = state.keys.gone_worker(worker.id)
    turn.do(Write(key=key, value=encode(ending), leased=False))
    buried = {**state.buried, worker.id: ending}
    turn.set(buried=dict(tuple(buried.items())[-MOST_BURIED:]))
    turn.drop_worker(worker)
    if worker.report is not None:
        turn.set(last_report=worker.report)
    if ending.finished or ending.failure is not None:
        respawns.note_end(turn, worker, None if ending.finished else ending.failure)
    how = words.in_a_line(ending.failure.headline) if ending.failure else ending.how
    turn.because(f"{worker.id.place} ended", how)


def stop(turn: Turn, worker: OwnWorker, reason: str) -> None:
    """Walk one worker down the stop ladder, once."""
    if not worker.stopped:
        turn.put_worker(replace(worker, stopped=reason))
        turn.do(StopWorker(worker=worker.id, reason=reason))


def stop_all(turn: Turn, reason: str, *, only: Iterable[Phase] = tuple(Phase)) -> None:
    """Stop every worker in one of these phases."""
    phases = tuple(only)
    for worker in tuple(turn.state.workers.values()):
        if worker.phase in phases:
            stop(turn, worker, reason)
