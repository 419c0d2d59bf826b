"""What memory allows each slot to hold: by what is free there, and by where it ran out. Pure."""

from collections.abc import Mapping

from easyscale.agent import words
from easyscale.model import LogicalRank, SlotRecord, WorkerFailure, WorkerId
from easyscale.rendezvous.view import JobView

#: What torch and Python call it, and what the kernel does about it.
_OUT_OF_MEMORY = ("OutOfMemoryError", "MemoryError")


def most_ranks(
    view: JobView,
    slots: Mapping[WorkerId, SlotRecord],
    present: Mapping[WorkerId, tuple[LogicalRank, ...]],
) -> dict[WorkerId, int]:
    """The most ranks of each worker that something bounds."""
    ran_out = fits_after_running_out(view)
    bounds: dict[WorkerId, int] = {}
    for worker, slot in slots.items():
        room = _room(slot, len(present.get(worker, ())))
        known = ran_out.get(worker.place)
        if room is not None or known is not None:
            bounds[worker] = min(each for each in (room, known) if each is not None)
    return bounds


def _room(slot: SlotRecord, held: int) -> int | None:
    """Ranks share the weights: twice as many take one partial sum of gradients more."""
    if not held or slot.free_bytes is None or not slot.partial_bytes:
        return None
    doublings = held.bit_length() + slot.free_bytes // slot.partial_bytes
    return None if doublings > 62 else (1 << doublings) - 1  # noqa: PLR2004 - more than any N


def fits_after_running_out(view: JobView) -> dict[str, int]:
    """Place -> half of what a worker held there when it ran out of memory."""
    return {
        worker.place: len(view.gone[worker].ranks) // 2
        for worker in view.gone_order
        if (failure := view.gone[worker].failure) is not None and is_out_of_memory(failure)
    }


def what_fits(failure: WorkerFailure | None, held: int) -> str:
    """Behind how a worker ended: that memory ran out, and what its slot is given from then on."""
    if failure is None or not is_out_of_memory(failure):
        return ""
    fits = held // 2
    planned = f"at most {words.count(fits, 'logical rank')} from now on" if fits else "none fits"
    return f": out of memory with {words.count(held, 'logical rank')}; {planned}"


def is_out_of_memory(failure: WorkerFailure) -> bool:
    named = failure.type.rpartition(".")[2] in _OUT_OF_MEMORY
    return named or "out of memory" in failure.headline.lower()
