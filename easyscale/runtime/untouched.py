"""Keeps what is registered as it is while an evaluation runs, of which each process has a share.

What a batch writes into buffers is put back before the next one (a cache, statistics of a BatchNorm
in training mode), so no batch sees which others ran here; a weight that is written is refused.
"""

import torch

from easyscale.errors import ScriptError
from easyscale.guide import Paragraph
from easyscale.runtime.training import Training
from easyscale.runtime.versions import Versions


class Untouched:
    """What is registered, as it was when an evaluation began."""

    __slots__ = ("_buffers", "_copies", "_slots", "_training", "_versions", "_weights")

    def __init__(self, training: Training) -> None:
        registry = training.things
        self._training = training
        self._slots = registry.buffers
        self._buffers = [slot.tensor for slot in self._slots]
        self._copies = [buffer.clone() for buffer in self._buffers]
        self._versions = self._now()
        own = {id(buffer) for buffer in self._buffers}
        self._weights = Versions(
            {name: each for name, each in registry.trained_tensors.items() if id(each) not in own}
        )

    def keep(self) -> None:
        """After a batch: put buffers back; raises ScriptError for a weight that was written."""
        written = self._weights.first_written()
        if written is not None:
            raise ScriptError(
                f"{written} was written in an evaluation, of which each process runs only its own "
                "batches",
                hint="write weights in the outer body, from what job.evaluate returns",
                see=Paragraph.EVALUATION,
            )
        now = self._now()
        if now == self._versions:
            return
        first = next(i for i, seen in enumerate(self._versions) if seen != now[i])
        self._training.say_once(
            f"{self._slots[first].path} was written in an evaluation and is put back after each "
            "batch: an evaluation changes no buffers"
        )
        with torch.no_grad():
            for slot, buffer, copy in zip(self._slots, self._buffers, self._copies, strict=True):
                slot.module._buffers[slot.name] = buffer  # noqa: SLF001 - as BufferSlot
                buffer.copy_(copy)
        self._versions = self._now()

    def _now(self) -> list[tuple[int, int]]:
        """Which tensor stands in each place, and what version it has."""
        tensors = (slot.tensor for slot in self._slots)
        return [
            (id(each), 0 if each.is_inference() else each._version)  # noqa: SLF001 - no other way
            for each in tensors
        ]
