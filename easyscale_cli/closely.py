"""A job's status with what each node's own agent knows of its slots; pure."""

from collections.abc import Mapping

import msgspec

from easyscale.job_status import Glance, SlotFacts

#: What an agent knows of its own slots alone; the rest has been recorded for all.
_OWN = (
    "pid",
    "wait_s",
    "data_wait_s",
    "utilisation_share",
    "memory_used_bytes",
    "memory_total_bytes",
    "temperature_c",
    "note",
)


def seen_closely(glance: Glance, own: Mapping[tuple[str, str], SlotFacts]) -> Glance:
    """The same with those facts, by (node, slot)."""
    slots = tuple(_with(slot, own.get((slot.node, slot.slot))) for slot in glance.status.slots)
    return msgspec.structs.replace(
        glance, status=msgspec.structs.replace(glance.status, slots=slots)
    )


def _with(slot: SlotFacts, own: SlotFacts | None) -> SlotFacts:
    if own is None:
        return slot
    known = {name: value for name in _OWN if (value := getattr(own, name)) is not None}
    return msgspec.structs.replace(slot, hung=slot.hung or own.hung, **known)
