"""What a person may ask of a plain or packed job, and what its nodes do about it; pure.

stop           the leader ends the job                              (court.py)
drain NODE     the leader stops the round, the node leaves          (court.py, here)
drain SLOT     a packed node offers one slot less: another round
devices        a packed node offers other slots: another round
"""

import msgspec

from easyscale.agent.plain import actions
from easyscale.agent.plain.state import Phase, Turn
from easyscale.agent.plain.values import RoundPhase, Sight
from easyscale.errors import UsageError
from easyscale.model import Wish
from easyscale.reports import EventKind


class NotInThisMode(UsageError):
    """Raised for what only jobs of another mode can be asked."""

    code = "not_in_this_mode"


def check(
    wish: Wish, sight: Sight, *, job: str, is_packed: bool, least: int, is_whole: bool
) -> Wish:
    """The wish as this job can grant it; raises UsageError where it cannot.

    `is_whole`: the nodes in sight are all of the job's, as they are not where nodes do not meet.
    """
    mode = "packed" if is_packed else "plain"
    match wish.kind:
        case "stop":
            return wish
        case "devices" if is_packed:
            return wish
        case "devices":
            raise fixed_workers(job)
        case "drain" if wish.slots and not is_packed:
            raise NotInThisMode(
                f"job {job!r} is plain: its workers do not move from slot to slot",
                hint=f"easyscale drain {job} {wish.node}, the whole node",
            )
        case "drain":
            return _check_drain(wish, sight, job=job, least=least, is_whole=is_whole)
        case _:
            raise not_in(job, mode, wish.kind)


def fixed_workers(job: str) -> NotInThisMode:
    """How other slots of a plain job are refused."""
    return NotInThisMode(
        f"job {job!r} is plain: its number of workers is fixed at its launch",
        hint="--packed --logical-workers N keeps N ranks on whatever slots there are",
    )


def not_in(job: str, mode: str, what: str) -> NotInThisMode:
    """How a request of elastic jobs is refused."""
    return NotInThisMode(
        f"job {job!r} is {mode}, which knows no {what}: its script does not call easyscale.init",
        hint=f"easyscale status {job}",
    )


def _check_drain(wish: Wish, sight: Sight, *, job: str, least: int, is_whole: bool) -> Wish:
    """The last of a node's slots is the node, and the last node is the job."""
    offers = sight.staying
    places = {place for offer in offers if offer.node == wish.node for place in offer.places}
    if wish.slots and places - set(wish.slots):
        return wish
    others = sum(offer.node != wish.node for offer in offers)
    if not others and is_whole:
        by = wish.by.removeprefix("asked by ")
        return msgspec.structs.replace(wish, kind="stop", node="", slots=(), by=by)
    if not is_whole:
        raise NotInThisMode(
            f"the nodes of job {job!r} do not meet: none of them can leave the others",
            hint=f"easyscale stop {job}, which ends what runs here",
        )
    if others < least:
        raise UsageError(
            f"node {wish.node} is needed: job {job!r} has {others + 1} nodes, and --nnodes asks"
            f" for at least {least}",
            hint=f"start another node first, or easyscale stop {job}",
        )
    return msgspec.structs.replace(wish, slots=())


def take(turn: Turn) -> None:
    """Do what was asked of this node."""
    state = turn.state
    for wish_id, wish in sorted(state.sight.wishes.items()):
        if wish.node != state.node or wish.refused or wish_id in state.taken:
            continue
        if wish.kind == "devices":
            turn.set(taken=turn.state.taken | {wish_id})
            turn.do(actions.FindSlots(wish_id=wish_id, wish=wish))
        elif wish.kind == "drain" and wish.slots:
            turn.set(taken=turn.state.taken | {wish_id})
            _withdraw(turn, wish_id, wish)
        elif wish.kind == "drain" and _may_leave(turn):
            turn.set(taken=turn.state.taken | {wish_id})
            if state.round is None or state.node not in state.round.drained:
                turn.tell(EventKind.DRAINED, wish.by, node=state.node)
            # The wish stands as long as this node may still be seen; its next agent forgets it.
            turn.do(actions.Exit(code=0, reason="the job goes on without this node"))


def _withdraw(turn: Turn, wish_id: str, wish: Wish) -> None:
    """Offer the other slots; the ranks of these start again there with all others."""
    left = tuple(place for place in turn.state.places if place not in wish.slots)
    if not left:
        refused = msgspec.structs.replace(wish, refused="these are its last slots")
        turn.do(actions.Settle(wish_id=wish_id, refused=refused))
        return
    for slot in wish.slots:
        turn.tell(EventKind.DRAINED, wish.by, node=turn.state.node, slot=slot)
    turn.set(places=left)
    turn.do(actions.Offer(places=left))
    turn.do(actions.Settle(wish_id=wish_id))


def _may_leave(turn: Turn) -> bool:
    """Nothing of this node runs, and no round that goes on counts on it."""
    state = turn.state
    if state.phase is not Phase.MEETING or state.done_s is not None:
        return False
    seen = state.sight.round
    if seen is None or seen.member(state.node, state.incarnation) is None:
        return True
    return seen.phase is RoundPhase.STOPPING and state.round == seen
