"""Which own workers are hung, by their pulses: late by our own word while others wait. Pure.

A hung worker's stacks are dumped first and it is killed a moment later, unless it has moved; its
peers break then. One that nobody waits for has much longer: its end would lose what it holds.
"""

from collections.abc import Mapping

from msgspec.structs import replace

from easyscale.agent import news
from easyscale.agent.actions import DumpStacks, KillWorker
from easyscale.agent.state import OwnWorker, Phase, State, Turn
from easyscale.model import WorkerId
from easyscale.pulse import Beat
from easyscale.pulse import Phase as Pulse
from easyscale.reports import EventKind

#: Between the dump of the stacks and the kill.
DUMP_S = 0.5
#: An agent that ticked no oftener than this was stopped itself, its workers perhaps with it.
_ASLEEP_S = 2.0
_PHASES = {Pulse.MICRO_STEP: "micro-step", Pulse.EXCHANGE: "reduction"}
#: Nobody's position moves before a worker in one of these goes on.
_TOGETHER = frozenset({Pulse.EXCHANGE, Pulse.FORMING, Pulse.BROKEN})
#: A worker in one of these reacts to a commit of mode now at once.
_WAITS = frozenset({Pulse.WAITING, Pulse.EXCHANGE, Pulse.BROKEN})


def take_beats(turn: Turn, beats: Mapping[WorkerId, Beat]) -> None:
    for worker_id, beat in beats.items():
        worker = turn.own(worker_id)
        if worker is not None and worker.beat != beat:
            turn.put_worker(replace(worker, beat=beat))


def watch(turn: Turn, monotonic_s: float) -> None:
    """Dump and kill who is hung."""
    if monotonic_s - turn.state.ticked_s > _ASLEEP_S:
        turn.set(awake_s=monotonic_s)
    turn.set(ticked_s=monotonic_s)
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
                silent_s=monotonic_s - (worker.beat.polled_s or worker.beat.since_s),
                rank=worker.beat.rank,
            )
            turn.do(DumpStacks(worker=worker.id))


def _has_moved(turn: Turn, worker: OwnWorker, monotonic_s: float) -> bool:
    """Its beat is another than the one it was judged by, and is none to be judged by."""
    beat = worker.beat
    if beat is None or beat == worker.hung_at:
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
        and commit.mode.value == "now"
        and worker.told == commit.generation
        and worker.phase is Phase.MEMBER
        and beat.phase in _WAITS
        and min(silent_s, now - worker.told_s) >= deaf_s
        and (worker.entered is None or worker.entered.generation < commit.generation)
    ):
        return f"no answer to {commit.generation.label} for {now - worker.told_s:.3g} s"
    if why := _stopped(state, worker, beat, monotonic_s):
        return why
    in_time = beat.phase is not Pulse.MICRO_STEP or silent_s < _patience_s(state, worker, beat)
    if not in_time and _others_wait(state, worker, beat):
        return f"no progress for {silent_s:.3g} s: {worker.id.place}{rank} in step {beat.step:,}"
    outside = beat.phase in (Pulse.STARTING, Pulse.OUTER_BODY, Pulse.EVALUATION, Pulse.SNAPSHOT)
    if outside and silent_s >= settings.timeouts.hang_outside_s:
        return f"no progress for {silent_s:.3g} s: {worker.id.place} in {beat.phase.name.lower()}"
    return ""


def _patience_s(state: State, worker: OwnWorker, beat: Beat) -> float:
    """The silence inside a micro-step that counts as a hang."""
    settings = state.settings
    is_missed = beat.is_stopped or not _is_alone(state, worker)
    if settings.hang_timeout_s is None and not is_missed:
        return settings.timeouts.hang_outside_s
    step_s = worker.report.step_s if worker.report else None
    return settings.timeouts.hang_timeout_s(step_s, chosen_s=settings.hang_timeout_s)


def _is_alone(state: State, worker: OwnWorker) -> bool:
    """No other worker holds the state: nobody else computes, and nobody could go on without it.

    Who computes in a generation was let in by all of its members, and each of them held the state
    then. Who is only in a newer one may have yet to take it, which its leader alone can see.
    """
    view = state.view
    newer = state.commit.workers if state.commit is not None else ()
    holders = {*_peers(state, worker), *(one for one in newer if view.holds_state(one))}
    return not any(one != worker.id and not view.ended(one) for one in holders)


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
    signs_s = beat.polled_s
    if beat.phase is Pulse.EXCHANGE and signs_s is None:
        signs_s = beat.since_s  # on its way into the wait, which takes no time
    if signs_s is None or not _others_wait(state, worker, beat):
        return ""
    silent_s = monotonic_s - max(signs_s, state.awake_s)
    timeouts = state.settings.timeouts
    limit_s = max(state.settings.hang_timeout_s or timeouts.hang_least_s, timeouts.deaf_timeout_s)
    if silent_s < limit_s:
        return ""
    phase = _PHASES.get(beat.phase, beat.phase.name.lower())
    return f"does not wake for {silent_s:.3g} s: {worker.id.place} waits in {phase}"


def _others_wait(state: State, worker: OwnWorker, beat: Beat) -> bool:
    """Somebody of ours waits at the same position, or nobody of ours could tell.

    Members elsewhere wait as soon as they have done their own.
    """
    peers = [
        other
        for other in state.workers.values()
        if other.id != worker.id and other.phase is Phase.MEMBER and other.beat is not None
    ]
    if not peers:
        return True
    return any(
        other.beat is not None
        and other.beat.phase in _TOGETHER
        and (other.beat.position >= beat.position or other.beat.phase is Pulse.FORMING)
        for other in peers
    )
