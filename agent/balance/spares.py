"""Slots beyond what a node can use: it has as many workers as the job has ranks. Pure.

They have no process until a slot of their node is slow, or somebody moves ranks to them by name.
"""

from easyscale.agent import gathering
from easyscale.model import NodeRecord, SlotRecord
from easyscale.rendezvous.view import JobView


def is_spare(slot: SlotRecord, node: NodeRecord, view: JobView) -> bool:
    """It has no worker and needs none."""
    if view.spec is None or slot.worker is not None or slot.state != "starting":
        return False
    workers = sum(each.worker is not None for each in node.slots)
    return workers >= view.spec.logical_workers


def spares(view: JobView) -> tuple[SlotRecord, ...]:
    """Those that this job could use, were there any use for them."""
    kind = gathering.kind_of((), view.spec)
    return tuple(
        slot
        for node in view.nodes.values()
        for slot in node.record.slots
        if is_spare(slot, node.record, view) and gathering.fits_kind(slot, kind)
    )
