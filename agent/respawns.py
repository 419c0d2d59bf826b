"""When a slot whose workers failed gets its next one: at once, later, or after a quarantine. Pure.

A slot that fails again and again while others train accuses its device: it rests, longer each time.
Where nobody else trains there is nothing to compare with, and the restart budget decides.
"""

from easyscale.agent import endings, news, survivors, words
from easyscale.agent.state import OwnWorker, Respawn, State, Turn
from easyscale.messages import StepReport
from easyscale.model import WorkerFailure
from easyscale.rendezvous.agreement import JobView
from easyscale.reports import EventKind

_NEVER = float("inf")


def may_start(state: State, slot: str, now_s: float) -> bool:
    """Nothing keeps the slot from having a worker."""
    waiting = state.respawns.get(slot)
    if waiting is None or now_s >= waiting.ready_s:
        return True
    if waiting.quarantine:
        # It is for the good of those who train; when they are gone, every slot counts.
        return not others_train(state, slot)
    return not waiting.failures and _is_end_undone(state.view)


def _is_end_undone(view: JobView) -> bool:
    """All have ended, main not in order: whoever finished beside it has to come to the end anew."""
    base, newest = view.base, view.newest
    if base is None or newest is None or newest.pauses or view.outcome is not None:
        return False
    if endings.end_of_main(view) is not None:
        return False
    return all(view.ended(worker) for c in survivors.running(view) for worker in c.workers)


def is_out(state: State, slot: str) -> bool:
    """The slot has no worker and gets none soon."""
    waiting = state.respawns.get(slot)
    return waiting is not None and (waiting.ready_s == _NEVER or bool(waiting.quarantine))


def note_progress(turn: Turn, worker: OwnWorker, report: StepReport) -> None:
    """Failures are behind a slot once its worker has come some steps further than they did."""
    former = turn.state.respawns.get(worker.id.slot)
    margin = turn.state.settings.timeouts.forgiven_after_steps
    if former is not None and report.step >= former.step + margin:
        _forgive(turn, worker.id.slot)


def lift_quarantine(turn: Turn, slot: str) -> None:
    """Let the slot start afresh, if it rests."""
    waiting = turn.state.respawns.get(slot)
    if waiting is not None and waiting.quarantine:
        _forgive(turn, slot)


def _forgive(turn: Turn, slot: str) -> None:
    turn.set(respawns={name: r for name, r in turn.state.respawns.items() if name != slot})


def note_end(turn: Turn, worker: OwnWorker, failure: WorkerFailure | None) -> None:
    """Decide when the slot of a worker that has ended gets its next one; None: it has finished."""
    slot = worker.id.slot
    former = turn.state.respawns.get(slot)
    failures = (former.failures if former is not None else 0) + 1
    if failure is None:
        respawn = Respawn(0, _NEVER, worker.step)
    elif failure.refused:
        respawn = Respawn(failures, _NEVER, worker.step)
    else:
        respawn = _next(turn, worker, failure, failures)
    turn.set(respawns={**turn.state.respawns, slot: respawn})


def tell_quarantine(turn: Turn, worker: OwnWorker) -> None:
    """Say that the slot of a worker that has ended rests, if it does."""
    waiting = turn.state.respawns.get(worker.id.slot)
    if waiting is not None and waiting.quarantine:
        turn.because("quarantine", waiting.quarantine)
        news.announce(
            turn, EventKind.NOTE, waiting.quarantine, node=worker.id.node, slot=worker.id.slot
        )


def _next(turn: Turn, worker: OwnWorker, failure: WorkerFailure, failures: int) -> Respawn:
    timeouts = turn.state.settings.timeouts
    beyond = failures - timeouts.quarantine_failures
    if beyond >= 0 and others_train(turn.state, worker.id.slot):
        delay_s = min(timeouts.quarantine_first_s * 2.0**beyond, timeouts.quarantine_most_s)
        why = (
            f"{worker.id.place} is in quarantine for {delay_s:g} s: {failures} failures in a row"
            f" while others train, the last: {words.in_a_line(failure.headline)}"
        )
        return Respawn(failures, turn.now.s + delay_s, failure.job_step, quarantine=why)
    # At once after a signal, a little later after an exception.
    first_s = 0.0 if failure.type.startswith("SIG") else timeouts.respawn_first_s
    later_s = timeouts.respawn_first_s * 2.0 ** (failures - 1)
    delay_s = min(first_s if failures == 1 else later_s, timeouts.respawn_most_s)
    return Respawn(failures, turn.now.s + delay_s, failure.job_step)


def others_train(state: State, slot: str) -> bool:
    """A member of the job on another slot lives, as far as this agent knows."""
    if state.commit is None:
        return False
    living = {worker.id for worker in state.workers.values()}
    return any(
        member in living if member.node == state.node else not state.view.ended(member)
        for member in state.commit.workers
        if (member.node, member.slot) != (state.node, slot)
    )
