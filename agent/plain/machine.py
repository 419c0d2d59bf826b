"""The agent of a plain or packed job as a pure machine: (state, event, now) -> (state, actions).

MEETING -> RUNNING -> MEETING -> ... -> exit
              |  a failure, another round, the job's end
           STOPPING -> MEETING or exit
              |  a signal
           LEAVING -> exit
"""

import math
from dataclasses import replace
from typing import assert_never

import msgspec

from easyscale.agent import words
from easyscale.agent.plain import actions, events, lead, leave, wishes
from easyscale.agent.plain.settings import PlainSettings
from easyscale.agent.plain.state import Now, Phase, State, Turn, Worker
from easyscale.agent.plain.values import (
    Member,
    Report,
    ReportState,
    Round,
    RoundPhase,
)
from easyscale.agent.plain.verdict import first_own_fault, own_faults
from easyscale.reports import EventKind

#: After a first failure others that failed by themselves are still heard: one may be the cause.
_FAULT_WINDOW_S = 0.15
#: The same where the first one lost its peers: the cause is a failure that is still to be seen.
_VICTIM_WINDOW_S = 1.0
#: Ranks that end well end together, or nearly so; one that ended long before may be missed.
_EARLY_S = 60.0
#: Who has done its part waits so long for the others' word while the store is away.
_AWAY_LIMIT_S = 60.0


def begin(settings: PlainSettings, incarnation: str, now: Now) -> State:
    return State(
        settings=settings,
        incarnation=incarnation,
        began_s=now.s,
        places=settings.slots,
        quiet_since_s=now.s,
        short_since_s=now.s,
    )


def step(
    state: State, event: events.PlainEvent, now: Now
) -> tuple[State, tuple[actions.PlainAction, ...], str]:
    turn = Turn(state, now)
    match event:
        case events.Met():
            _meet(turn, event)
        case events.Seen():
            _see(turn, event)
        case events.WorkerStarted():
            _note_pid(turn, event)
        case events.WorkerExited():
            _take_end(turn, event)
        case events.Signalled():
            leave.take_signal(turn, event.number)
        case events.SlotsChanged():
            _change_slots(turn, event)
        case events.SlotsRefused(wish_id=wish_id, reason=reason):
            if (wish := turn.state.sight.wishes.get(wish_id)) is not None:
                refused = msgspec.structs.replace(wish, refused=reason)
                turn.do(actions.Settle(wish_id=wish_id, refused=refused))
        case events.Asked(wish_id=wish_id, wish=wish):
            turn.do(actions.Ask(wish_id=wish_id, wish=wish))
            turn.because(f"{wish.by or 'somebody'} asks: {wish.kind} {wish.node}".rstrip())
        case events.LeaseEnded():
            # Others may have gone on without this node: it asks to take part again.
            turn.do(actions.Offer(places=turn.state.places))
        case events.StoreAway():
            turn.set(away_since_s=now.s, refuses=event.refuses)
            told = event.told("workers go on, changes wait")
            turn.tell(EventKind.STORE_AWAY, told, endpoint="etcd")
        case events.StoreBack():
            turn.set(away_since_s=None, refuses="")
            turn.tell(EventKind.STORE_BACK, "nothing lost", endpoint="etcd", away_s=event.silent_s)
        case events.Ticked():
            pass
        case _:
            assert_never(event)
    _keep_time(turn)
    if turn.state.sight.round is not None and turn.state.sight.outcome is None:
        _follow(turn, turn.state.sight.round)
    wishes.take(turn)
    if turn.state.leads:
        lead.decide(turn)
    return turn.state, tuple(turn.actions), "; ".join(turn.reasons)


def deadline(state: State) -> float | None:
    """When time alone changes something."""
    due = [state.fault_due_s, state.kill_s, state.early_due_s]
    if state.leads:
        due.append(lead.due(state))
    if state.done_s is not None and state.away_since_s is not None:
        due.append(state.away_since_s + _AWAY_LIMIT_S)
    if state.phase is Phase.MEETING and state.settings.meets:
        due.append(state.told_waiting_s + leave.TELL_WAITING_S)
    return min((at for at in due if at is not None), default=None)


# --- meeting -------------------------------------------------------------------------------------


def _meet(turn: Turn, event: events.Met) -> None:
    now = turn.now.s
    turn.set(met=True, quiet_since_s=now, short_since_s=now, told_waiting_s=now)
    state = turn.state
    if state.settings.meets:
        turn.tell(
            EventKind.MET,
            endpoint=event.store,
            took_s=event.seconds,
            node=state.node,
            slots=len(state.places),
        )


def _see(turn: Turn, event: events.Seen) -> None:
    state = turn.state
    before = {(offer.node, offer.incarnation) for offer in state.sight.offers}
    after = {(offer.node, offer.incarnation) for offer in event.sight.offers}
    if before != after:
        turn.set(quiet_since_s=turn.now.s)
        if len(before) >= state.settings.min_nodes:
            turn.set(short_since_s=turn.now.s)
    turn.set(sight=event.sight, leads=event.leads, written_s=None)
    if event.sight.outcome is not None:
        leave.take_outcome(turn, event.sight.outcome)


def _change_slots(turn: Turn, event: events.SlotsChanged) -> None:
    turn.set(places=event.places)
    turn.tell(EventKind.NOTE, event.reason)
    turn.do(actions.Offer(places=event.places))
    if event.wish_id:
        turn.do(actions.Settle(wish_id=event.wish_id))


def _follow(turn: Turn, seen: Round) -> None:
    """Take part in the round that stands, or leave one that stops."""
    state = turn.state
    own = state.round.number if state.round else 0
    if state.phase is Phase.LEAVING:
        return
    if seen.number == own and seen.phase is RoundPhase.STOPPING:
        if state.phase is Phase.RUNNING or state.done_s is not None:
            _tell_change(turn, seen)
            turn.set(round=seen, done_s=None)
            leave.stop_workers(turn, seen.reason)
    elif seen.number > own and state.phase is Phase.RUNNING:
        # The others took this node for lost, and went on without it.
        leave.stop_workers(turn, f"round {own} is over: {seen.reason}")
    elif seen.number > own and state.phase is Phase.MEETING:
        member = seen.member(state.node, state.incarnation)
        if member is not None and seen.phase is RoundPhase.RUNNING:
            _start(turn, seen, member)
        elif member is not None:
            # Over before it was seen: nothing was started for it, and that is what is waited for.
            turn.set(round=seen, done_s=None)
            turn.do(actions.Publish(report=_stopped(state, seen)))


def _tell_change(turn: Turn, seen: Round) -> None:
    for node in seen.lost:
        turn.tell(EventKind.LOST, seen.reason, node=node)
    for node in seen.drained:
        asked = turn.state.sight.leaving(node)
        turn.tell(EventKind.DRAINED, asked.by if asked else "", node=node)
    for node in seen.joined:
        turn.tell(EventKind.JOINED, seen.reason, node=node)


def _start(turn: Turn, round_: Round, member: Member) -> None:
    # MEETING -> RUNNING: a round names this node.
    turn.set(
        phase=Phase.RUNNING,
        round=round_,
        member=member,
        workers={rank: Worker() for rank in range(member.workers)},
        faults=(),
        fault_due_s=None,
        early_due_s=None,
        kill_s=None,
        done_s=None,
    )
    turn.do(actions.StartWorkers(round=round_, member=member))
    shares = tuple(m.workers for m in round_.members) if len(round_.members) > 1 else None
    turn.tell(
        EventKind.STARTED,
        round_.reason,
        node=turn.state.node,
        workers=member.workers,
        shares=shares,
        world_size=round_.world_size,
        restarts=round_.restarts,
    )
    turn.because(f"round {round_.number} starts")
    if not member.workers:
        leave.all_ended(turn)


# --- workers -------------------------------------------------------------------------------------


def _is_present(state: State, round_number: int) -> bool:
    return state.round is not None and state.round.number == round_number


def _note_pid(turn: Turn, event: events.WorkerStarted) -> None:
    if not _is_present(turn.state, event.round):
        return
    worker = replace(turn.state.workers[event.local_rank], pid=event.pid)
    turn.set(workers={**turn.state.workers, event.local_rank: worker})


def _take_end(turn: Turn, event: events.WorkerExited) -> None:
    state = turn.state
    if not _is_present(state, event.round):
        return
    worker = replace(state.workers[event.local_rank], has_ended=True)
    turn.set(workers={**state.workers, event.local_rank: worker})
    if event.fault is not None and state.phase is Phase.RUNNING:
        turn.set(faults=(*state.faults, event.fault))
        window_s = _VICTIM_WINDOW_S if event.fault.is_victim else _FAULT_WINDOW_S
        due_s = turn.now.s + window_s
        if state.fault_due_s is not None:
            due_s = min(due_s, state.fault_due_s)
        turn.set(fault_due_s=due_s)
        turn.because(f"rank {event.fault.rank} failed: {event.fault.headline}")
    elif state.phase is Phase.RUNNING and state.early_due_s is None:
        turn.set(early_due_s=turn.now.s + _EARLY_S)
    if not turn.state.running:
        leave.all_ended(turn)


def _tell_early(turn: Turn) -> None:
    """One rank has ended well long before the others: a collective would wait for it."""
    state = turn.state
    assert state.member is not None
    turn.set(early_due_s=math.inf)
    first = state.member.first_rank
    ended = [first + n for n, worker in state.workers.items() if worker.has_ended]
    left = [first + n for n in state.running]
    goes = "go" if len(left) > 1 else "goes"
    text = f"{words.ranks(ended)} ended with 0 a minute ago, {words.ranks(left)} {goes} on"
    turn.tell(EventKind.NOTE, text)


def _keep_time(turn: Turn) -> None:
    state, now = turn.state, turn.now.s
    if state.fault_due_s is not None and now >= state.fault_due_s:
        # RUNNING -> STOPPING: the group is worth nothing without its failed worker.
        turn.set(fault_due_s=None)
        if state.running:
            turn.do(actions.Publish(report=_failed(state)))
            leave.stop_workers(turn, "a worker failed")
    if state.phase is Phase.RUNNING and now >= (state.early_due_s or math.inf):
        _tell_early(turn)
    if state.kill_s is not None and now >= state.kill_s:
        turn.set(kill_s=None)
        turn.do(actions.KillWorkers(local_ranks=state.running))
        turn.because(f"{len(state.running)} workers did not end in time: killed")
    if (
        state.done_s is not None
        and state.away_since_s is not None
        and now >= state.away_since_s + _AWAY_LIMIT_S
    ):
        reason = f"etcd is away for {_AWAY_LIMIT_S:g} s and this node's workers have ended well"
        turn.tell(EventKind.NOTE, reason)
        turn.do(actions.Exit(code=0, reason=reason))
    leave.tell_waiting(turn)


def _stopped(state: State, seen: Round) -> Report:
    return Report(round=seen.number, incarnation=state.incarnation, state=ReportState.STOPPED)


def _failed(state: State) -> Report:
    assert state.round is not None
    return Report(
        round=state.round.number,
        incarnation=state.incarnation,
        state=ReportState.FAILED,
        fault=first_own_fault(state.faults),
        failed=own_faults(state.faults),
        is_over=False,
    )
