"""Whom a wish is about: slots, of the agent that had the node's name when it was asked. Pure."""

from collections.abc import Mapping

import msgspec

from easyscale.model import NodeRecord, SlotRecord, Wish, WorkerId
from easyscale.rendezvous.agreement import JobView

#: The command line of whoever is started next on the node says anew what it offers.
_OF_AN_AGENT = ("drain", "migrate", "devices")


def is_drained(view: JobView, worker: WorkerId, slots: Mapping[WorkerId, SlotRecord]) -> bool:
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


def is_noted(view: JobView, wish_id: str, wish: Wish) -> bool:
    """The agent that it is about has taken it up, or has gone.

    A slot that rests has no worker to tell by, and will have one again.
    """
    node = view.nodes.get(wish.node)
    if node is None or not means(wish, wish.node, node.record.incarnation):
        return True
    return wish_id in node.record.noted


def addressed(wish: Wish, view: JobView) -> Wish:
    """The wish as it is kept: it is about the agent that has the name when it is asked."""
    node = view.nodes.get(wish.node)
    if wish.kind not in _OF_AN_AGENT or wish.incarnation or node is None:
        return wish
    return msgspec.structs.replace(wish, incarnation=node.record.incarnation)


def leaves(view: JobView, node: NodeRecord) -> bool:
    """Nothing of this node shall hold anything: as its agent says, or by what it has yet to see."""
    asked = [w for w in view.wishes.values() if means(w, node.node, node.incarnation)]
    if any(wish.kind == "drain" and not wish.slots for wish in asked):
        return True
    slots = {slot.worker: slot for slot in node.slots if slot.worker is not None}
    return all(
        slot.state in ("draining", "gone")
        or (slot.worker is not None and is_drained(view, slot.worker, slots))
        for slot in node.slots
    )
