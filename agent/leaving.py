"""How an agent comes to its end: a signal, a drain, an outcome. Pure.

Draining asks for a boundary and loses nothing; the grace or a second signal ends it hard.
"""

import signal as signal_numbers

from msgspec.structs import replace

from easyscale.agent import closing, crew, news, respawns, words
from easyscale.agent.actions import Exit, KillWorker, Leave, ReportCause, Resign, Write
from easyscale.agent.cause import first_cause, no_worker_can_start
from easyscale.agent.events import Signalled
from easyscale.agent.state import Phase, Stage, State, Turn
from easyscale.errors import ExitCode
from easyscale.model import JobState, Mode, Outcome, Wish, WorkerFailure, encode
from easyscale.reports import EventKind

#: After everything here has ended, the outcome is waited for so long.
OUTCOME_WAIT_S = 10.0
#: Others read the outcome from the store that this agent serves for so long.
SERVE_ON_S = 5.0
#: Once the grace is over, the store is told that we leave within this, or not at all.
FAREWELL_S = 0.5
#: `timeout`, `uv run` and others signal a process and its group: so soon after it is the same word.
ECHO_S = 0.5
_IDLE = (Phase.FORKING, Phase.STARTING, Phase.STANDBY)


def signalled(turn: Turn, event: Signalled) -> None:
    """First: drain this node. Second: end its workers now."""
    if turn.now.s - turn.state.signalled_s < ECHO_S:
        return
    turn.set(signalled_s=turn.now.s)
    name = words.signal_name(event.number)
    if turn.state.signal is not None or turn.state.stage is Stage.ENDING:
        is_second = turn.state.signal is not None
        left_s = 0.0 if is_second else turn.state.settings.grace_s
        turn.set(signal=event.number, leave_by_s=turn.now.s + left_s)
        kill_all(turn, f"{name} came again")
        return
    if turn.state.stage is Stage.LEAVING:
        # A wish drains us already: the signal only sets the time.
        turn.set(signal=event.number, leave_by_s=turn.now.s + turn.state.settings.grace_s)
        return
    sender = f" from {event.sender}" if event.sender else ""
    grace_s = turn.state.settings.grace_s
    leave(turn, f"{name}{sender}, {grace_s:g} s grace", signal=event.number)


def leave(turn: Turn, by: str, *, signal: int | None) -> None:
    """Ask for a boundary without this node; workers that hold nothing end at once."""
    state = turn.state
    if state.stage is not Stage.RUNNING:
        return
    turn.set(
        stage=Stage.LEAVING,
        signal=signal,
        withdrawn=frozenset(slot.name for slot in state.slots),
        leave_by_s=turn.now.s + state.settings.grace_s if signal is not None else None,
    )
    turn.because("drains this node", by)
    crew.stop_all(turn, f"drain: {by}", only=_IDLE)
    members = [w for w in turn.state.workers.values() if w.phase is Phase.MEMBER]
    if signal is not None and members:
        # Should we be killed before it is granted, whoever is started here next is not meant.
        incarnation = state.identity.incarnation
        wish = Wish(kind="drain", node=state.node, incarnation=incarnation, by=by)
        key = state.keys.wish(f"drain-{state.node}"[:64])
        turn.do(Write(key=key, value=encode(wish), leased=False))
        news.announce(
            turn, EventKind.DRAINING, _drain_words(turn, by, len(members)), node=state.node
        )
    in_tail = sum(w.phase is Phase.FINISHED for w in turn.state.workers.values())
    if signal is not None and in_tail and not members:
        news.announce(turn, EventKind.DRAINING, _tail_words(turn, by, in_tail), node=state.node)


def _tail_words(turn: Turn, by: str, workers: int) -> str:
    """The same where training is over and only the script's own end is left."""
    if turn.state.signal == signal_numbers.SIGINT:
        again = f"ctrl-c again kills its {words.count(workers, 'worker')}"
        return f"all steps are done, the script's end is awaited; {again}"
    return f"all steps are done, the script's end is awaited ({by})"


def _drain_words(turn: Turn, by: str, workers: int) -> str:
    """What a person reads who pressed ctrl-c, or whose scheduler sent SIGTERM."""
    at = f"draining this node at step {turn.state.step:,}"
    if turn.state.signal == signal_numbers.SIGINT:
        return f"{at}; ctrl-c again kills its {words.count(workers, 'worker')}"
    return f"{at} ({by})"


def kill_all(turn: Turn, reason: str) -> None:
    """SIGKILL every worker of this node, once; nothing is waited for after that."""
    turn.set(is_forced=True)
    for worker in tuple(turn.state.workers.values()):
        if worker.killed_s is None:
            turn.put_worker(replace(worker, stopped=reason, killed_s=turn.now.s))
            turn.do(KillWorker(worker=worker.id, reason=reason))
    turn.because("kills the workers of this node", reason)


def notice_outcome(turn: Turn) -> None:
    """The job has ended: so do our workers, then we."""
    state = turn.state
    outcome = state.view.outcome
    if outcome is None or state.first_revision is None:
        return
    if state.stage in (Stage.ENDING, Stage.GONE):
        return
    if state.view.outcome_revision < state.first_revision:
        return  # of an earlier launch: this one goes on from there
    # RUNNING, LEAVING -> ENDING: the leader wrote the outcome
    turn.set(stage=Stage.ENDING)
    turn.because(f"the job has {outcome.state}", outcome.reason)
    if outcome.state is JobState.FAILED:
        crew.stop_all(turn, "the job has failed")
    else:
        crew.stop_all(turn, f"job {outcome.state}", only=(*_IDLE, Phase.MEMBER, Phase.LEAVING))


def settle(turn: Turn) -> None:
    """Leave when everything that keeps this agent is over; called after every event."""
    state = turn.state
    if _is_grace_over(turn) and state.workers and not state.is_forced:
        kill_all(turn, f"the grace of {state.settings.grace_s:g} s is over")
    if state.workers or state.stage is Stage.GONE:
        return
    match state.stage:
        case Stage.ENDING:
            _settle_ending(turn)
        case Stage.LEAVING:
            _settle_leaving(turn)
        case _:
            _settle_running(turn)


def _is_grace_over(turn: Turn) -> bool:
    return turn.state.leave_by_s is not None and turn.now.s >= turn.state.leave_by_s


def _settle_ending(turn: Turn) -> None:
    state, outcome = turn.state, turn.state.view.outcome
    assert outcome is not None
    if state.ended_s is None:
        turn.set(ended_s=turn.now.s)
    serves = not state.settings.store.endpoints and len(state.view.nodes) > 1
    waited_s = turn.now.s - (turn.state.ended_s or turn.now.s)
    is_patient = waited_s < SERVE_ON_S and not _is_grace_over(turn)
    if state.token is not None and serves and is_patient:
        return  # the others read the outcome from our store
    code = int(outcome.exit_code)
    if outcome.state is JobState.STOPPED and state.signal is not None:
        code = 128 + state.signal
    if outcome.cause is not None:
        news.announce(
            turn,
            EventKind.FAILED,
            outcome.cause.why_ended,
            at_step=outcome.step,
            exit_code=code,
            also_on=outcome.cause.also_on,
            blames=outcome.cause.blames,
            victims=outcome.cause.victims,
        )
        cause = first_cause(
            outcome.cause,
            exit_code=code,
            settings=state.settings,
            snapshot=news.newest_snapshot(turn),
            generation=state.commit,
        )
        turn.do(ReportCause(cause=cause))
    elif outcome.state is JobState.FAILED:
        news.announce(turn, EventKind.FAILED, outcome.reason, exit_code=code)
    else:
        closing.conclude(turn, outcome, exit_code=code)
    _go(turn, code, outcome.reason)


def _settle_leaving(turn: Turn) -> None:
    """Everything here has ended: others go on, or the job pauses and its outcome is due."""
    state = turn.state
    if state.drained_s is None:
        turn.set(drained_s=turn.now.s)
    if _goes_on_elsewhere(state):
        # The store may say of an older step: it is told of the job's progress now and then.
        step = max((e.step for e in state.buried.values() if e.drained), default=state.step)
        reason = "the job goes on without this node"
        news.announce(turn, EventKind.LEFT, reason, at_step=step, node=state.node)
        _go(turn, ExitCode.DONE, "drained: the job goes on without this node")
        return
    code = 128 + state.signal if state.signal is not None else int(ExitCode.DONE)
    waited_s = turn.now.s - (turn.state.drained_s or turn.now.s)
    due = state.told_start and state.away_s is None and not state.is_forced
    if due and waited_s < OUTCOME_WAIT_S and not _is_grace_over(turn):
        return
    news.announce(turn, EventKind.STOPPED, "ended here before the job did", exit_code=code)
    _go(turn, code, "left: the job has not finished")


def _goes_on_elsewhere(state: State) -> bool:
    commit = state.commit
    others = () if commit is None else (w for w in commit.workers if w.node != state.node)
    return any(not state.view.ended(worker) for worker in others)


def _settle_running(turn: Turn) -> None:
    """Without a zygote nothing can start here; after the end an unreachable store keeps nobody."""
    state = turn.state
    if state.lost_zygote:
        cause = no_worker_can_start(
            state.settings, node=state.node, how=state.lost_zygote, losses=state.zygote_losses
        )
        turn.do(ReportCause(cause=cause))
        _go(turn, ExitCode.JOB_FAILED, f"no worker can start here: {state.lost_zygote}")
        return
    if (misfit := _misfit(state)) is not None:
        told = words.in_a_line(misfit.headline)
        refuse(turn, f"the job goes on without this node, which does not fit it: {told}")
        return
    if state.commit is not None and state.commit.pauses and crew.was_member(state):
        _settle_paused(turn)
    away_s = turn.now.s - state.away_s if state.away_s is not None else 0.0
    if away_s >= state.settings.timeouts.evict_after_s:
        _finish_alone(turn)


def _misfit(state: State) -> WorkerFailure | None:
    """What the script of this node was refused for on its way into a job that others train."""
    commit = state.commit
    if commit is None or not _goes_on_elsewhere(state):
        return None
    if commit.mode is Mode.RESTORE and state.node in {worker.node for worker in commit.workers}:
        return None  # nobody has come further: it may be the script of all
    if not all(respawns.is_out(state, slot.name) for slot in state.slots):
        return None
    failures = [ending.failure for ending in state.buried.values()]
    return next((f for f in failures if f and f.refused and f.generation is None), None)


def _finish_alone(turn: Turn) -> None:
    """Close with the digest where our script has ended and no store can be told of it."""
    state = turn.state
    finished = [ending for ending in state.buried.values() if ending.finished]
    if not finished:
        return
    ending = next((one for one in finished if one.is_main), finished[0])
    news.announce(
        turn,
        EventKind.NOTE,
        "etcd is away, so the outcome is not recorded",
        at_step=ending.step,
    )
    closing.conclude(turn, Outcome.of_finished(ending), exit_code=int(ExitCode.DONE))
    _go(turn, ExitCode.DONE, "finished while etcd was away")


def _settle_paused(turn: Turn) -> None:
    """The outcome of a pause is due, unless the store has forgotten that there was one."""
    state = turn.state
    if state.is_confirmed or state.away_s is not None:
        return
    if state.drained_s is None:
        turn.set(drained_s=turn.now.s)
    elif turn.now.s - state.drained_s >= OUTCOME_WAIT_S:
        reason = "paused; etcd came back empty, so the outcome is not recorded"
        news.announce(turn, EventKind.STOPPED, reason, exit_code=int(ExitCode.DONE))
        _go(turn, ExitCode.DONE, reason)


def refuse(turn: Turn, reason: str) -> None:
    """End here at once: what was asked for does not fit the job."""
    news.announce(turn, EventKind.STOPPED, reason, exit_code=int(ExitCode.USAGE))
    kill_all(turn, reason)
    _go(turn, ExitCode.USAGE, reason)


def _go(turn: Turn, code: int, reason: str) -> None:
    turn.set(stage=Stage.GONE)
    turn.because(f"exit {int(code)}", reason)
    turn.do(Resign(reason=reason))
    turn.do(Leave(how=reason))
    by_s = turn.state.leave_by_s
    farewell_s = None if by_s is None else max(by_s - turn.now.s, FAREWELL_S)
    turn.do(Exit(code=int(code), reason=reason, farewell_s=farewell_s))
