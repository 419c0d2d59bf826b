"""Which nodes ours has lost the way to, and when it counts as found again. Pure.

    suspected or dropped -> asked again and again -> answered after its hold -> no cut

Both sides ask. A node joins once neither its own agent nor a member's names the other.
"""

from collections.abc import Iterable
from dataclasses import replace

from easyscale.agent.actions import Probe
from easyscale.agent.events import Probed
from easyscale.agent.state import Cut, Turn
from easyscale.messages import Broken
from easyscale.model import Commit, Mode, WorkerId
from easyscale.rendezvous.agreement import JobView

#: An answer is asked for after this, doubled each time up to the longest.
FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 8.0
#: A link that was cut before is held for this, doubled each time: a flapping one costs little.
FIRST_HOLD_S = 1.0
LONGEST_HOLD_S = 60.0


def suspect(turn: Turn, said: Broken) -> None:
    """Remember whom our worker could not exchange with, until it is known why."""
    others = {worker for worker in said.suspects if worker.node != turn.state.node}
    turn.set(suspects=turn.state.suspects | others)


def judge(turn: Turn) -> None:
    """Who was suspected, is left out of what follows and has not ended is out of reach."""
    state, commit = turn.state, turn.state.commit
    if not state.suspects or commit is None or commit.mode is not Mode.NOW:
        return
    if commit.generation not in state.view.commits:
        return  # it came from a peer: what the view knows of endings may be older
    # Who is tried once more with us stays suspected until we have met.
    turn.set(suspects=state.suspects & set(commit.workers))
    if not any(worker.id in commit.workers for worker in state.workers.values()):
        return  # we are the ones who were left out: `dropped`
    left_out = {worker for worker in state.suspects if worker not in commit.workers}
    cut(turn, {worker.node for worker in left_out if not _died(state.view, worker)})


def _died(view: JobView, worker: WorkerId) -> bool:
    """It ended by itself: the process is to blame and not the link. One that was fenced did not."""
    ending = view.gone.get(worker)
    return view.ended(worker) and not (ending is not None and ending.drained)


def met(turn: Turn, commit: Commit) -> None:
    """A worker of ours has formed this generation: it reaches everybody in it."""
    turn.set(suspects=turn.state.suspects - set(commit.workers))


def dropped(turn: Turn, commit: Commit) -> None:
    """The job went on without a worker of ours that lives: see whether we reach who is in it."""
    cut(turn, {worker.node for worker in commit.workers if worker.node != turn.state.node})


def cut(turn: Turn, nodes: Iterable[str]) -> None:
    """Count these nodes as out of reach from now on."""
    for node in sorted(set(nodes) - turn.state.cuts.keys()):
        times = turn.state.cut_before.get(node, 0)
        hold_s = min(FIRST_HOLD_S * 2.0 ** (times - 1), LONGEST_HOLD_S) if times else 0.0
        fresh = Cut(ask_s=turn.now.s, until_s=turn.now.s + hold_s, pause_s=FIRST_PAUSE_S)
        turn.set(
            cuts={**turn.state.cuts, node: fresh},
            cut_before={**turn.state.cut_before, node: times + 1},
        )


def probe(turn: Turn) -> None:
    """Ask those whose turn it is; called with every tick."""
    state = turn.state
    if state.away_s is not None:
        return
    due = [
        n for n, one in sorted(state.cuts.items()) if not one.is_asked and one.ask_s <= turn.now.s
    ]
    if due:
        asked = {node: replace(state.cuts[node], is_asked=True) for node in due}
        turn.set(cuts={**state.cuts, **asked})
        turn.do(Probe(nodes=tuple(due)))


def probed(turn: Turn, event: Probed) -> None:
    """Whoever answered is reached again, once its hold is over; who is gone is nobody to reach."""
    cuts = dict(turn.state.cuts)
    for node in event.asked:
        one = cuts.get(node)
        if one is None:
            continue
        answered = node in event.reached or node in event.absent
        if answered and turn.now.s >= one.until_s:
            del cuts[node]
            if node in event.reached:
                turn.because(f"reaches node {node} again")
        elif answered:
            cuts[node] = replace(one, is_asked=False, ask_s=one.until_s)
        else:
            cuts[node] = replace(
                one,
                is_asked=False,
                ask_s=turn.now.s + one.pause_s,
                pause_s=min(2 * one.pause_s, LONGEST_PAUSE_S),
            )
    turn.set(cuts=cuts)


def apart(view: JobView, node: str) -> tuple[str, ...]:
    """The nodes at work that do not reach this one, or that it does not reach."""
    at_work = {worker.node for worker in view.base.workers} if view.base else set()
    ours = view.nodes[node].record.cut if node in view.nodes else ()
    return tuple(
        other
        for other in sorted(at_work - {node})
        if other in ours or (other in view.nodes and node in view.nodes[other].record.cut)
    )
