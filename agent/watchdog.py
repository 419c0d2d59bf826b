"""Which own workers are hung, by their pulses: late by our own word while others wait. Pure.

A hung worker's stacks are dumped first and it is killed a moment later, unless it has moved; its
peers break then. One that nobody waits for has much longer: its end would lose what it holds.
"""

from collections.abc import Mapping

from msgspec.structs import replace

from easyscale.agent import endings, news
from easyscale.agent.actions import DumpStacks, KillWorker
from easyscale.agent.state import OwnWorker, Phase, State, Turn
from easyscale.model import Mode, WorkerId
from easyscale.pulse import Beat
from easyscale.pulse import Phase as Pulse
from easyscale.reports import EventKind

#: Between the dump of the stacks and the kill.
DUMP_S = 0.5
#: An agent that ticked no oftener than this was stopped itself, its workers perhaps with it.
_ASLEEP_S = 2.0
_PHASES = {
    Pulse.MICRO_STEP: "micro-step",
    Pulse.EXCHANGE: "reduction",
    Pulse.WAITING: "wait for ranks",
    Pulse.FINISHED: "tail",
}
#: Nobody's position moves before a worker in one of these goes on.
_TOGETHER = frozenset({Pulse.EXCHANGE, Pulse.FORMING, Pulse.BROKEN})
#: A worker in one of these reacts to a commit of mode now at once.
_WAITS = frozenset({Pulse.WAITING, Pulse.EXCHANGE, Pulse.BROKEN})
_OUTSIDE = frozenset({Pulse.STARTING, Pulse.OUTER_BODY, Pulse.EVALUATION, Pulse.SNAPSHOT})
#: Here a worker that a signal holds is judged by that alone; elsewhere others have to wait for it.
_HELD = _OUTSIDE | {Pulse.WAITING, Pulse.FINISHED, Pulse.FORMING, Pulse.BROKEN}


def take_beats(turn: Turn, beats: Mapping[WorkerId, Beat], monotonic_s: float) -> None:
    for worker_id, beat in beats.items():
        worker = turn.own(worker_id)
        if worker is None:
            continue
        if not beat.is_stopped:
            held_s = None
        else:
            held_s = monotonic_s if worker.held_s is None else worker.held_s
        if worker.beat != beat or worker.held_s != held_s:
            turn.put_worker(replace(worker, beat=beat, held_s=held_s))


def watch(turn: Turn, monotonic_s: float) -> None:
    """Dump and kill who is hung."""
    if monotonic_s - turn.state.ticked_s > _ASLEEP_S:
        turn.set(awake_s=monotonic_s)
    turn.set(ticked_s=monotonic_s)
    is_over = endings.end_of_main(turn.state.view) is not None
    if is_over != (turn.state.over_s is not None):
        turn.set(over_s=turn.now.s if is_over else None)
    for worker in tuple(turn.state.workers.values()):
        if worker.hung and worker.killed_s is None:
            if _has_moved(turn, worker, monotonic_s):
                _acquit(turn, worker)
            elif turn.now.s >= worker.since_s + DUMP_S:
                turn.put_worker(replace(worker, killed_s=turn.now.s))
                turn.do(KillWorker(worker=worker.id, reason=worker.hung))
            continue
        if worker.hung or worker.stopped or worker.beat is None:
            continue
        why = _hung(turn.state, worker, worker.beat, turn.now.s, monotonic_s)
        if why:
            turn.put_worker(replace(worker, hung=why, hung_at=worker.beat, since_s=turn.now.s))
            turn.because(f"{worker.id.place} is hung", why)
            news.announce(
                turn,
                EventKind.HUNG,
                "stacks in its log",
                at_step=worker.beat.step,
                phase=_PHASES.get(worker.beat.phase, worker.beat.phase.name.lower()),
                node=worker.id.node,
                slot=worker.id.slot,
                silent_s=_silent_s(worker, worker.beat, turn.now.s, monotonic_s),
                rank=worker.beat.rank,
            )
            turn.do(DumpStacks(worker=worker.id))


def _silent_s(worker: OwnWorker, beat: Beat, now: float, monotonic_s: float) -> float:
    """For how long it has given no sign that was due: to wait for ranks is silent by itself."""
    if beat.phase is not Pulse.WAITING:
        return monotonic_s - (beat.polled_s or beat.since_s)
    if worker.held_s is not None:
        return monotonic_s - worker.held_s
    return now - (worker.asked_s if worker.phase is Phase.STANDBY else worker.told_s)


def _has_moved(turn: Turn, worker: OwnWorker, monotonic_s: float) -> bool:
    """Its beat is another than the one it was judged by, and is none to be judged by.

    Who waits for ranks moves by what it says: its beat stays what it is.
    """
    beat = worker.beat
    if beat is None or (beat == worker.hung_at and beat.phase is not Pulse.WAITING):
        return False
    return not _hung(turn.state, worker, beat, turn.now.s, monotonic_s)


def _acquit(turn: Turn, worker: OwnWorker) -> None:
    turn.put_worker(replace(worker, hung="", hung_at=None))
    told = f"{worker.id.place} has moved and is not killed"
    turn.because(told, f"it counted as hung: {worker.hung}")
    news.announce(
        turn,
        EventKind.NOTE,
        f"{told}; it counted as hung: {worker.hung}",
        node=worker.id.node,
        slot=worker.id.slot,
    )


def _hung(state: State, worker: OwnWorker, beat: Beat, now: float, monotonic_s: float) -> str:
    """Why the worker counts as hung, or nothing."""
    settings = state.settings
    silent_s = monotonic_s - beat.since_s
    rank = f" r{beat.rank}" if beat.rank is not None else ""
    deaf_s = settings.timeouts.deaf_timeout_s
    commit = state.commit
    if (
        commit is not None
        and (commit.mode is Mode.NOW or (beat.phase is Pulse.WAITING and worker.entered is None))
        and worker.told == commit.generation
        and worker.phase is Phase.MEMBER
        and beat.phase in _WAITS
        and min(silent_s, now - worker.told_s) >= deaf_s
        and (worker.entered is None or worker.entered.generation < commit.generation)
        # Who says that it is broken has answered, and waits for the next one.
        and (worker.broken is None or worker.broken.generation < commit.generation)
    ):
        return f"no answer to {commit.generation.label} for {now - worker.told_s:.3g} s"
    if why := _held(state, worker, beat, monotonic_s):
        return why
    if why := _mute(state, worker, beat, min(now - worker.asked_s, monotonic_s - state.awake_s)):
        return why
    if why := _stopped(state, worker, beat, monotonic_s):
        return why
    in_time = beat.phase is not Pulse.MICRO_STEP or silent_s < _patience_s(state, worker, beat)
    is_due = not in_time and (
        _others_wait(state, worker, beat) or _is_latest(state, worker, monotonic_s)
    )
    if is_due:
        return f"no progress for {silent_s:.3g} s: {worker.id.place}{rank} in step {beat.step:,}"
    if beat.phase is Pulse.FINISHED:
        return _at_script_end(state, worker, now, silent_s)
    # Who forms and polls nothing makes, reads or loads the state: work like any outside the loop.
    is_outside = beat.phase in _OUTSIDE or (beat.phase is Pulse.FORMING and beat.polled_s is None)
    if is_outside and silent_s >= settings.timeouts.hang_outside_s:
        return f"no progress for {silent_s:.3g} s: {worker.id.place} in {beat.phase.name.lower()}"
    return ""


def _held(state: State, worker: OwnWorker, beat: Beat, monotonic_s: float) -> str:
    """Why it counts as hung where a signal holds it: outside the loop nobody has to wait for it."""
    if worker.held_s is None or beat.phase not in _HELD:
        return ""
    held_s = monotonic_s - max(worker.held_s, state.awake_s)
    if held_s < _awake_limit_s(state):
        return ""
    return f"stopped by a signal for {held_s:.3g} s: {worker.id.place} in {beat.phase.name.lower()}"


def _mute(state: State, worker: OwnWorker, beat: Beat, silent_s: float) -> str:
    """Why a worker that waits for ranks counts as hung: it was asked and has said nothing since."""
    if worker.phase is not Phase.STANDBY or beat.phase is not Pulse.WAITING:
        return ""
    if worker.plan is None or worker.plan == worker.ready:
        return ""
    if silent_s < _awake_limit_s(state):
        return ""
    return f"not ready for {worker.plan.label} for {silent_s:.3g} s: {worker.id.place} in register"


def _at_script_end(state: State, worker: OwnWorker, now: float, silent_s: float) -> str:
    """Why it counts as hung after its last step; main may take as long as its script wants.

    Once main has ended in order, all that counts is done, and the others have a minute.
    """
    timeouts = state.settings.timeouts
    if worker.finished is not None and worker.finished.is_main:
        return ""
    if state.over_s is not None and now - state.over_s >= timeouts.script_end_s:
        over_s = now - state.over_s
        return f"still there {over_s:.3g} s after main: {worker.id.place} at its script's end"
    if silent_s >= timeouts.hang_outside_s:
        return f"no progress for {silent_s:.3g} s: {worker.id.place} at its script's end"
    return ""


def _awake_limit_s(state: State) -> float:
    """How long a process that should answer at once may be silent."""
    timeouts = state.settings.timeouts
    return max(state.settings.hang_timeout_s or timeouts.hang_least_s, timeouts.deaf_timeout_s)


def _patience_s(state: State, worker: OwnWorker, beat: Beat, *, is_seen: bool = False) -> float:
    """The silence inside a micro-step that counts as a hang; `is_seen`: nobody here waits."""
    settings = state.settings
    is_missed = beat.is_stopped or not _is_alone(state, worker, only_elsewhere=is_seen)
    if settings.hang_timeout_s is None and not is_missed:
        return settings.timeouts.hang_outside_s
    step_s = worker.report.step_s if worker.report else None
    return settings.timeouts.hang_timeout_s(step_s, chosen_s=settings.hang_timeout_s)


def _is_alone(state: State, worker: OwnWorker, *, only_elsewhere: bool) -> bool:
    """No other worker holds the state: nobody else computes, and nobody could go on without it.

    Who computes in a generation was let in by all of its members, and each of them held the state
    then. Who is only in a newer one may have yet to take it, which its leader alone can see.
    """
    view = state.view
    newer = state.commit.workers if state.commit is not None else ()
    holders = {*_peers(state, worker), *(one for one in newer if view.holds_state(one))}
    return not any(
        one != worker.id and not view.ended(one)
        for one in holders
        # Where nobody here waits, only those out of sight may.
        if not (only_elsewhere and one.node == state.node)
    )


def _peers(state: State, worker: OwnWorker) -> tuple[WorkerId, ...]:
    """The members of the generation that it has entered, or of all that it may be in."""
    known = [commit for commit in (state.commit, state.former) if commit is not None]
    if worker.entered is not None:
        at = worker.entered.generation
        older = state.view.commits.get(at)
        found = next((one for one in known if one.generation == at), older)
        if found is not None:
            return found.workers
    return tuple(one for commit in known for one in commit.workers)


def _stopped(state: State, worker: OwnWorker, beat: Beat, monotonic_s: float) -> str:
    """Why the worker counts as stopped inside a wait, or nothing.

    A wait polls hundreds of times a second however long it lasts, so this asks for no step time.
    """
    signs_s = _signs_s(beat)
    if signs_s is None:
        return ""
    if not (_others_wait(state, worker, beat) or _is_latest(state, worker, monotonic_s)):
        return ""
    silent_s = monotonic_s - max(signs_s, state.awake_s)
    if silent_s < _awake_limit_s(state):
        return ""
    phase = _PHASES.get(beat.phase, beat.phase.name.lower())
    return f"does not wake for {silent_s:.3g} s: {worker.id.place} waits in {phase}"


def _signs_s(beat: Beat) -> float | None:
    """When it last showed that it is awake in a wait."""
    if beat.phase is Pulse.EXCHANGE and beat.polled_s is None:
        return beat.since_s  # on its way into the wait, which takes no time
    return beat.polled_s


def _is_latest(state: State, worker: OwnWorker, monotonic_s: float) -> bool:
    """All of ours are late, so none is seen to wait, and it has been silent the longest.

    The others are judged when it has ended: perhaps they were late because of it.
    """
    others = _members_here(state, worker)
    if any(other.hung for other in others):
        return False
    late = {one.id: _late_s(state, one, monotonic_s) for one in (worker, *others)}
    known = {one: silent_s for one, silent_s in late.items() if silent_s is not None}
    if len(known) < len(late):
        return False
    return max(known, key=lambda one: (known[one], one)) == worker.id


def _late_s(state: State, worker: OwnWorker, monotonic_s: float) -> float | None:
    """How long it has been silent; None while that is not too long for what it is in."""
    beat = worker.beat
    assert beat is not None
    silent_s = monotonic_s - max(beat.since_s, beat.polled_s or 0.0)
    limit_s = _awake_limit_s(state)
    if beat.phase is Pulse.MICRO_STEP:
        limit_s = _patience_s(state, worker, beat, is_seen=True)
    elif not beat.is_stopped and _signs_s(beat) is None:
        return None
    return silent_s if silent_s >= limit_s else None


def _members_here(state: State, worker: OwnWorker) -> list[OwnWorker]:
    return [
        other
        for other in state.workers.values()
        if other.id != worker.id and other.phase is Phase.MEMBER and other.beat is not None
    ]


def _others_wait(state: State, worker: OwnWorker, beat: Beat) -> bool:
    """Somebody of ours waits at the same position, or nobody of ours could tell.

    Members elsewhere wait as soon as they have done their own.
    """
    peers = _members_here(state, worker)
    if not peers:
        return True
    return any(
        other.beat is not None
        and other.beat.phase in _TOGETHER
        and (other.beat.position >= beat.position or other.beat.phase is Pulse.FORMING)
        for other in peers
    )
