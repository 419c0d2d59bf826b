"""How workers of a round come to their end, and how an agent comes to its own.

One ladder for every stop: the signal to the scripts, the time they have, then the end by force.
"""

import signal

from easyscale.agent.plain import actions
from easyscale.agent.plain.state import Phase, Turn
from easyscale.agent.plain.values import Outcome, Report, ReportState
from easyscale.agent.plain.verdict import (
    SIGNAL_BASE,
    by_signal,
    first_cause,
    first_own_fault,
    own_faults,
    summary,
)
from easyscale.agent.words import signal_name
from easyscale.errors import ExitCode
from easyscale.reports import EventKind

#: A wait for other nodes is told this often.
TELL_WAITING_S = 1.0
#: `timeout`, `uv run` and others signal a process and its group: so soon after it is the same word.
ECHO_S = 0.5


def stop_workers(turn: Turn, reason: str, *, number: int = signal.SIGTERM) -> None:
    """Ask the scripts to end, once; who does not is killed after the time it has."""
    state = turn.state
    if state.phase is Phase.RUNNING:
        # RUNNING -> STOPPING: they end one by one, or by force.
        turn.set(phase=Phase.STOPPING)
    if not state.running:
        all_ended(turn)
        return
    turn.set(kill_s=turn.now.s + state.settings.shutdown_timeout_s, fault_due_s=None)
    turn.do(actions.SignalWorkers(local_ranks=state.running, number=number))
    turn.because(f"workers are stopped: {reason}")


def all_ended(turn: Turn) -> None:
    """Say what became of the round here, and go on accordingly."""
    state = turn.state
    turn.set(kill_s=None, fault_due_s=None)
    if state.phase is Phase.LEAVING:
        _go(turn)
        return
    if state.sight.outcome is not None:
        _exit(turn, state.sight.outcome)
        return
    assert state.round is not None
    fault = first_own_fault(state.faults)
    if fault is not None:
        said = ReportState.FAILED
        _tell_failure(turn)
    elif state.phase is Phase.RUNNING:
        said = ReportState.DONE
        turn.set(done_s=turn.now.s)
    else:
        said = ReportState.STOPPED
    report = Report(
        round=state.round.number,
        incarnation=state.incarnation,
        state=said,
        fault=fault,
        failed=own_faults(state.faults),
    )
    # RUNNING or STOPPING -> MEETING: what follows is the leader's to say.
    turn.set(phase=Phase.MEETING, told_waiting_s=turn.now.s)
    turn.do(actions.Publish(report=report))
    turn.because(f"all workers of round {state.round.number} have ended: {said}")


def _tell_failure(turn: Turn) -> None:
    state = turn.state
    fault = first_own_fault(state.faults)
    assert fault is not None
    turn.tell(
        EventKind.LOST,
        fault.headline,
        node=fault.node,
        pid=fault.pid,
        exit_code=fault.exit_code,
        signal=signal_name(fault.signal) if fault.signal is not None else None,
        ranks=(fault.rank,),
    )


# --- signals -------------------------------------------------------------------------------------


def take_signal(turn: Turn, number: int) -> None:
    """A stop signal ends this node's part; a second one hurries; others are only passed on."""
    state = turn.state
    if number not in state.settings.stop_signals:
        if state.running:
            turn.do(actions.SignalWorkers(local_ranks=state.running, number=number))
        return
    if turn.now.s - state.signalled_s < ECHO_S:
        return
    turn.set(signalled_s=turn.now.s)
    if state.phase is Phase.LEAVING:
        turn.set(kill_s=None)
        turn.do(actions.KillWorkers(local_ranks=state.running))
        return
    turn.set(signal=number)
    was_stopping = state.phase is Phase.STOPPING
    # any -> LEAVING: the signal's scripts have the same time as in every stop.
    turn.set(phase=Phase.LEAVING)
    if not state.running:
        _go(turn)
        return
    grace_s = state.settings.shutdown_timeout_s
    turn.tell(
        EventKind.DRAINING,
        f"{signal_name(number)} passed on to {len(state.running)} workers; they have {grace_s:g} s,"
        " a second one ends them now",
    )
    if was_stopping:
        return  # they have been asked already, and their time runs
    stop_workers(turn, signal_name(number), number=number)


def _go(turn: Turn) -> None:
    """Leave after a signal: with 0 where the job goes on without this node."""
    state = turn.state
    assert state.signal is not None
    round_ = state.sight.round
    others = sum(member.node != state.node for member in round_.members) if round_ else 0
    goes_on = state.settings.meets and others >= state.settings.min_nodes
    name = signal_name(state.signal)
    if goes_on:
        turn.tell(EventKind.LEFT, f"{name}; the job goes on", node=state.node)
        turn.do(actions.Exit(code=0, reason="the job goes on without this node"))
        return
    turn.tell(EventKind.DRAINED, by_signal(state.signal), node=state.node)
    turn.do(actions.Exit(code=SIGNAL_BASE + state.signal, reason=by_signal(state.signal)))


# --- the end of the job --------------------------------------------------------------------------


def take_outcome(turn: Turn, outcome: Outcome) -> None:
    if turn.state.running:
        stop_workers(turn, outcome.reason or "the job ended")
    elif turn.state.phase is not Phase.LEAVING:
        _exit(turn, outcome)


def _exit(turn: Turn, outcome: Outcome) -> None:
    state = turn.state
    number = state.round.number if state.round else 0
    if outcome.exit_code == ExitCode.DONE:
        kind = EventKind.STOPPED if outcome.is_stop else EventKind.FINISHED
        turn.tell(kind, outcome.reason)
        elapsed_s = turn.now.s - state.began_s
        told = summary(state.settings, outcome, elapsed_s=elapsed_s, rounds=number, log_dir="")
        turn.do(actions.Conclude(summary=told))
    else:
        turn.tell(EventKind.FAILED, outcome.reason, exit_code=outcome.exit_code)
        if outcome.fault is not None:
            cause = first_cause(state.settings, outcome, round_number=number)
            turn.do(actions.ReportCause(cause=cause, fault=outcome.fault))
    turn.do(actions.Exit(code=outcome.exit_code, reason=outcome.reason))


def tell_waiting(turn: Turn) -> None:
    """Whom a job with several nodes waits for, now and then."""
    state = turn.state
    if not (state.met and state.settings.meets and state.phase is Phase.MEETING):
        return
    if state.done_s is not None or turn.now.s < state.told_waiting_s + TELL_WAITING_S:
        return
    missing = state.settings.min_nodes - len(state.sight.offers)
    turn.set(told_waiting_s=turn.now.s)
    waited_s, limit_s = turn.now.s - state.short_since_s, state.settings.join_timeout_s
    if not state.leads:
        # Only the leader sees who is there.
        turn.tell(EventKind.WAITING, "for the other nodes", waited_s=waited_s, limit_s=limit_s)
    elif missing > 0:
        turn.tell(
            EventKind.WAITING,
            missing=missing,
            wanted=state.settings.min_nodes,
            waited_s=waited_s,
            limit_s=limit_s,
            have=tuple(offer.node for offer in state.sight.offers),
        )
