"""What a trouble of a GPU means for its slot: nothing, a word, a drain, or its loss. Pure.

After NVIDIA's catalogue of XID errors; what a process did itself is no fault of the device.
"""

from enum import StrEnum

#: The process' own fault, or the cleanup after one: the worker's ending says more.
_OF_THE_PROCESS = frozenset({13, 31, 43, 45, 68, 94, 109})
_WORDS = {
    46: "the GPU stopped processing",
    48: "an uncorrectable memory error",
    62: "its microcontroller halted",
    63: "a memory row is to be remapped at the next reset",
    64: "a memory row could not be remapped",
    74: "an NVLink error",
    79: "the GPU has fallen off the bus",
    92: "many single-bit memory errors",
    95: "an uncontained memory error",
    119: "its system processor does not answer",
    120: "its system processor failed",
    140: "an unrecovered memory error",
}
_TO_BE_TOLD = frozenset({63})
_DRAINS = frozenset(_WORDS) - _TO_BE_TOLD - {79}
_LOST = frozenset({79})


class Trouble(StrEnum):
    """What follows for the slots on the device."""

    #: Nothing: the worker that caused it ends by itself.
    NONE = "none"
    TELL = "tell"
    #: Nothing is lost yet: the slot is emptied at a boundary.
    DRAIN = "drain"
    #: Whatever runs there computes no more.
    LOST = "lost"


def judge(what: str, code: int | None) -> tuple[Trouble, str]:
    """What follows, and why in words for people."""
    if what == "lost":
        return Trouble.LOST, "the GPU is lost"
    if what == "ecc":
        return Trouble.DRAIN, "an uncorrectable memory error"
    if what != "xid" or code is None or code in _OF_THE_PROCESS:
        return Trouble.NONE, ""
    reason = f"XID {code}: {_WORDS[code]}" if code in _WORDS else f"XID {code}"
    if code in _LOST:
        return Trouble.LOST, reason
    return (Trouble.DRAIN if code in _DRAINS else Trouble.TELL), reason
