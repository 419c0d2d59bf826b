"""An agent that leads: asks `court.decide` about what it sees, and has the answer written once."""

from easyscale.agent.plain import actions, court
from easyscale.agent.plain.court import Patience, Waited
from easyscale.agent.plain.state import State, Turn
from easyscale.agent.plain.values import Outcome, Round, Terms

#: A decision that nobody confirms for so long is made anew.
_RETRY_S = 2.0


def terms_of(state: State) -> Terms:
    settings = state.settings
    return Terms(
        min_nodes=settings.min_nodes,
        max_nodes=settings.max_nodes,
        max_restarts=settings.max_restarts,
        logical_workers=settings.logical_workers,
    )


def decide(turn: Turn) -> None:
    state, now = turn.state, turn.now.s
    if state.written_s is not None and now < state.written_s + _RETRY_S:
        return
    waited = Waited(quiet_s=now - state.quiet_since_s, short_s=now - state.short_since_s)
    patience = Patience(
        join_timeout_s=state.settings.join_timeout_s, last_call_s=state.settings.last_call_s
    )
    decision = court.decide(state.sight, terms_of(state), waited, patience)
    if decision is None:
        return
    place = state.settings.static
    if place is not None and isinstance(decision, Round):
        decision = court.at_static_place(decision, place)
    turn.set(written_s=now)
    turn.do(actions.Write(value=decision, revision=state.sight.revision))
    what = "the job ends" if isinstance(decision, Outcome) else f"round {decision.number}"
    turn.because(f"leader: {what}: {decision.reason}" if decision.reason else f"leader: {what}")


def due(state: State) -> float | None:
    """When waiting for nodes may change the decision."""
    if state.written_s is not None:
        return state.written_s + _RETRY_S
    have = len(state.sight.offers)
    if have < state.settings.min_nodes:
        return state.short_since_s + state.settings.join_timeout_s
    if state.sight.round is None:
        return state.quiet_since_s + state.settings.last_call_s
    return None
