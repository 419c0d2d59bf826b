"""What wishes, slots and measurements ask of the running generation. Pure."""

from dataclasses import dataclass

import msgspec

from easyscale.agent import drafts, gathering
from easyscale.model import Commit, SlotRecord, Wish, WorkerId
from easyscale.rendezvous.agreement import JobView

#: The command line of whoever is started next on the node says anew what it offers.
_OF_AN_AGENT = ("drain", "migrate", "devices")


@dataclass(frozen=True, slots=True)
class Wanted:
    """Who stays, who goes, who may come, and what else somebody asks for."""

    stay: tuple[WorkerId, ...]
    #: Members that shall hold nothing, with the word of who asked.
    leave: tuple[WorkerId, ...]
    absent: tuple[WorkerId, ...]
    fresh: tuple[SlotRecord, ...]
    stop: Wish | None
    migrate: Wish | None
    #: The wish for a profile, with its id.
    profile: tuple[str, Wish] | None
    rebalance: bool


def wanted(view: JobView, base: Commit, limit: gathering.NodeLimit) -> Wanted:
    """What everybody who has a say wants of the members of the running generation."""
    slots = drafts.slots_of(view)
    leave = tuple(w for w in base.workers if view.is_present(w) and is_drained(view, w, slots))
    absent = tuple(w for w in base.workers if not view.is_present(w))
    wishes = [view.wishes[wish_id] for wish_id in sorted(view.wishes)]
    return Wanted(
        stay=tuple(w for w in base.workers if w not in leave and w not in absent),
        leave=leave,
        absent=absent,
        fresh=tuple(
            slot
            for slot in gathering.newcomers(view, limit)
            if slot.worker is not None
            and not is_drained(view, slot.worker, slots)
            and not any(moves_away(wish, slot.worker) for wish in wishes)
        ),
        stop=next((wish for wish in wishes if wish.kind == "stop"), None),
        migrate=next(
            (w for w in wishes if any(moves_away(w, worker) for worker in base.workers)), None
        ),
        profile=next(
            ((i, view.wishes[i]) for i in sorted(view.wishes) if view.wishes[i].kind == "profile"),
            None,
        ),
        rebalance=any(wish.kind == "rebalance" for wish in wishes),
    )


def is_drained(view: JobView, worker: WorkerId, slots: dict[WorkerId, SlotRecord]) -> bool:
    """Its slot shall hold nothing: its agent says so, or a wish does that it has yet to see."""
    slot = slots.get(worker)
    marked = slot is not None and slot.state == "draining"
    return marked or any(drains(wish, worker) for wish in view.wishes.values())


def drains(wish: Wish, worker: WorkerId) -> bool:
    """Tell whether the wish takes this worker's slot away."""
    return wish.kind == "drain" and concerns(wish, worker)


def moves_away(wish: Wish, worker: WorkerId) -> bool:
    """Tell whether the wish moves what this worker holds elsewhere, once that can take it."""
    return wish.kind == "migrate" and concerns(wish, worker)


def concerns(wish: Wish, worker: WorkerId) -> bool:
    """Tell whether the wish is about this worker's slot, in this life of its agent."""
    is_meant = means(wish, worker.node, worker.incarnation)
    return is_meant and (not wish.slots or worker.slot in wish.slots)


def means(wish: Wish, node: str, incarnation: str) -> bool:
    """Tell whether the wish is about this agent: whoever is started later is not meant."""
    return wish.node == node and wish.incarnation in ("", incarnation)


def addressed(wish: Wish, view: JobView) -> Wish:
    """The wish as it is kept: it is about the agent that has the name when it is asked."""
    node = view.nodes.get(wish.node)
    if wish.kind not in _OF_AN_AGENT or wish.incarnation or node is None:
        return wish
    return msgspec.structs.replace(wish, incarnation=node.record.incarnation)
