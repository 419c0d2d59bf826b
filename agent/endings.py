"""When a job is over: its script is convicted, its budget spent, its training done, or stopped.

Pure. A failed job ends at once; one that ends in order waits until its members have.
"""

from easyscale.agent import budget, gathering, survivors, words
from easyscale.agent.memory import Memory
from easyscale.agent.verdicts import Standpoint, Verdict
from easyscale.errors import ExitCode
from easyscale.model import Commit, Ending, JobState, Mode, Outcome, WorkerId
from easyscale.rendezvous.agreement import End, JobView


def step_of_job(at: Standpoint) -> int:
    """How many steps the job has completed, as far as the leader knows."""
    return max(at.step, at.view.progress.step if at.view.progress else 0)


def ruling(at: Standpoint) -> budget.Ruling:
    """What the recorded failures come to."""
    failed = budget.counted(
        () if at.is_new_start else budget.failures(at.view),
        step=step_of_job(at),
        forgiven_after_steps=at.timeouts.forgiven_after_steps,
    )
    nodes = gathering.admitted(at.view, at.settings)
    slots = [s for node in nodes for s in node.slots if s.state not in budget.NOT_OFFERED]
    alive = [s for s in slots if s.worker is not None and not at.view.ended(s.worker)]
    return budget.judge(
        failed,
        slots=max(len(slots), 1),
        places=budget.contenders(failed, at.view, nodes),
        max_restarts=at.settings.max_restarts,
        benched_after=at.timeouts.quarantine_failures,
        workers=len(alive),
        formed=at.view.base is not None and not at.is_new_start,
    )


def by_failure(at: Standpoint, memory: Memory) -> Verdict | None:
    """Convicted scripts end with 1, a spent budget with 5."""
    if end_of_main(at.view) is not None and not at.is_new_start:
        return None  # nothing that failed beside it changes what it has
    judged = ruling(at)
    if judged.exit_code is None or judged.cause is None:
        return None
    cause = judged.cause
    why = (
        "restart budget spent"
        if judged.exit_code is ExitCode.RESTART_BUDGET_SPENT
        else words.in_a_line(cause.failure.headline)
    )
    outcome = Outcome(
        state=JobState.FAILED,
        exit_code=judged.exit_code,
        reason=f"{why}: {cause.why_ended}",
        step=cause.failure.step,
        cause=cause,
    )
    return Verdict(End(outcome), outcome.reason, memory)


def in_order(at: Standpoint, memory: Memory) -> Verdict | None:
    """All members have finished, or have left for a pause."""
    base, newest = at.view.base, at.view.newest
    if base is None or newest is None or at.is_new_start:
        return None
    finished = _finished(at.view, memory)
    if newest.pauses and (finished is None or finished.decision is None):
        return _paused(at, memory, base, newest)
    if finished is None and _is_awaited(at, memory):
        return _wait_for_end(at.view, memory)
    return finished  # also where a pause came when nothing was left to do but the script's tail


def end_of_main(view: JobView) -> Ending | None:
    """How main has finished, if it has: the training is done then.

    Its ending says that it was main. A change that was planned at the last boundary may name
    another one, and is entered by nobody any more.
    """
    finished = {who: e for who, e in view.gone.items() if e.finished}
    if not finished:
        return None
    for commit in reversed(survivors.running(view)):
        mains = (finished[w] for w in commit.workers if w in finished and finished[w].is_main)
        if (ending := next(mains, None)) is not None:
            return ending
    base = view.base
    ending = finished.get(base.main) if base is not None and base.main is not None else None
    if base is None or ending is None:
        return None
    # Who is main since a loss may have finished before that: nobody ends the job but it.
    return ending if ending.is_main is None or base.mode is not Mode.BOUNDARY else None


def _members(view: JobView) -> list[WorkerId]:
    """Who may have come to the end: newcomers of a change that nobody has entered have not."""
    running = survivors.running(view)
    named = (
        worker
        for commit in running
        for worker in commit.workers
        if commit is running[0] or view.holds_state(worker)
    )
    return list(dict.fromkeys(named))


def _is_awaited(at: Standpoint, memory: Memory) -> bool:
    """One that was not main has finished: the training is done, and main in its script's tail.

    Unless there is a loss or a cry for help, which is answered first.
    """
    beside = {who for who, e in at.view.gone.items() if e.finished and e.is_main is False}
    if not beside or beside.isdisjoint(_members(at.view)):
        return False
    return not survivors.standing(at, memory).calls_for_change


def _wait_for_end(view: JobView, memory: Memory) -> Verdict | None:
    waiting = [worker for worker in _members(view) if view.is_present(worker)]
    if not waiting:
        return None
    return Verdict(None, f"finished: waits for {words.places(waiting)} to end", memory)


def _finished(view: JobView, memory: Memory) -> Verdict | None:
    main = end_of_main(view)
    if main is None:
        return None
    waiting = [w for w in _members(view) if view.is_present(w)]
    if any(worker in report for report in view.breaks.values() for worker in waiting):
        return None  # it broke in the last operation and needs a generation to complete it in
    if waiting:
        return _wait_for_end(view, memory)
    # However the others ended: main has the result of the last operation, to which all gave theirs.
    outcome = Outcome.of_finished(main)
    return Verdict(End(outcome, _stops(view)), "finished: script ended", memory)


def _paused(at: Standpoint, memory: Memory, base: Commit, pause: Commit) -> Verdict | None:
    view = at.view
    if any(view.is_present(worker) for worker in base.workers):
        return None
    stops = _stops(view)
    agents = {(worker.node, worker.incarnation) for worker in base.workers}
    newcomers = any(
        (node.record.node, node.record.incarnation) not in agents for node in view.nodes.values()
    )
    if newcomers and not stops:
        return None  # somebody came to go on with the job
    left = [view.gone[worker] for worker in base.workers if worker in view.gone]
    outcome = Outcome(
        state=JobState.STOPPED,
        exit_code=ExitCode.DONE,
        reason=pause.reason,
        step=max((ending.step for ending in left), default=0),
    )
    return Verdict(End(outcome, stops), f"stopped: {pause.reason}", memory)


def _stops(view: JobView) -> tuple[str, ...]:
    """The wishes that any end of the job answers."""
    return tuple(wish_id for wish_id, wish in view.wishes.items() if wish.kind == "stop")
