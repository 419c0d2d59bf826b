"""An agent that leads: asks `leader.decide` and turns the answer into one transaction. Pure.

At most one transaction is under way, and the same view is acted on once.
"""

from dataclasses import replace

from easyscale.agent import leader, news
from easyscale.agent.actions import Transact
from easyscale.agent.balance import ledger
from easyscale.agent.events import Deposed, Elected, Transacted
from easyscale.agent.memory import Memory
from easyscale.agent.state import State, Turn
from easyscale.agent.verdicts import Standpoint
from easyscale.rendezvous.agreement import JobView, Tidy, transaction

DECISION = "decision "
#: A decision whose transaction failed is thought over again after this, also without news.
AGAIN_S = 0.5
#: Rules that depend on time alone are asked at least this often, more so while somebody is silent.
ASK_EVERY_S = 5.0
WATCH_EVERY_S = 0.5


def elected(turn: Turn, event: Elected) -> None:
    """Begin to lead: all that is remembered is since when our own workers have not moved.

    The open plan, if any, is taken over by the rules.
    """
    memory = _remember(turn.state, turn.now.s)
    turn.set(token=event.token, memory=memory, acted_revision=-1, deciding="", wake_s=None)
    turn.set(published={}, is_complete=False)
    turn.because("leads")


def _remember(state: State, now: float) -> Memory:
    beats = [worker.beat for worker in state.workers.values() if worker.beat is not None]
    if not beats:
        return Memory()
    position = max(beat.position for beat in beats)
    since_s = max(beat.since_s for beat in beats if beat.position == position)
    # While we were stopped ourselves we would not have seen it move.
    silent_s = max(0.0, state.ticked_s - max(since_s, state.awake_s))
    return Memory(position=position, moved_s=now - silent_s)


def deposed(turn: Turn, event: Deposed) -> None:
    turn.set(token=None, deciding="", wake_s=None, is_complete=False)
    turn.because("leads no more", event.reason)


def decide(turn: Turn) -> None:
    """Ask the rules when there is news or it is time, unless a decision is under way."""
    state = turn.state
    if state.token is None or state.first_revision is None or not state.is_complete:
        return
    is_due = state.wake_s is not None and state.wake_s <= turn.now.s
    is_news = state.view.revision != state.asked_revision
    every_s = WATCH_EVERY_S if state.memory.missing else ASK_EVERY_S
    if not (is_due or is_news or turn.now.s - state.asked_s >= every_s):
        return
    turn.set(asked_revision=state.view.revision, asked_s=turn.now.s, wake_s=None)
    if state.deciding or state.view.revision <= state.acted_revision:
        return
    view = _with_own_endings(state)
    at = Standpoint(
        view=view,
        now=turn.now.s,
        settings=state.settings,
        keys=state.keys,
        spec=state.spec,
        found=state.found,
        position=max((w.beat.position for w in state.workers.values() if w.beat), default=-1),
        step=max((w.step for w in state.workers.values()), default=0),
        store_back_s=state.back_s,
        since_revision=state.first_revision,
    )
    verdict = leader.decide(at, state.memory)
    if verdict.decision is None:
        news.tell_waiting(turn, verdict)
    if verdict.reason and verdict.reason != state.leader_reason:
        turn.because("decides" if verdict.decision else "waits", verdict.reason)
    turn.set(memory=verdict.memory, wake_s=verdict.wake_s)
    if verdict.reason:
        turn.set(leader_reason=verdict.reason)
    ledger.publish(turn)
    if verdict.decision is None:
        return
    planned = transaction(verdict.decision, view, keys=state.keys, token=state.token)
    quiet = isinstance(verdict.decision, Tidy)
    name = f"{DECISION}{'tidy' if quiet else verdict.reason}"
    turn.set(deciding=name, acted_revision=state.view.revision)
    turn.do(Transact(name=name, compares=planned.compares, operations=planned.operations))


def _with_own_endings(state: State) -> JobView:
    """The job as the store has it, and what it does not say yet of workers of this node that ended.

    Where all of them end at once, with their zygote, it takes their endings one by one: a look
    in between would find survivors.
    """
    view = state.view
    named = {worker for commit in view.open for worker in commit.workers}
    untold = {w: e for w, e in state.buried.items() if w in named and w not in view.gone}
    if not untold:
        return view
    order = (*view.gone_order, *untold)
    return replace(view, gone={**view.gone, **untold}, gone_order=order)


def decided(turn: Turn, event: Transacted) -> None:
    """A transaction of ours ended; one that failed is thought over with the next view."""
    if event.name != turn.state.deciding:
        return
    turn.set(deciding="")
    if not event.succeeded:
        lost = "its answer was lost" if event.succeeded is None else "something changed meanwhile"
        turn.because("decision not carried out", lost)
        turn.set(acted_revision=-1, wake_s=turn.now.s + AGAIN_S)
    else:
        # A view that does not show what we have just written would let us write it again.
        turn.set(asked_revision=-1, acted_revision=event.revision - 1)
