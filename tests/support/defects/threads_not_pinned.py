"""Workers share out the cores of the machine, as launchers do that leave threads alone.

Four cores are taken for granted, so that the defect shows on any machine.
"""

import torch

from easyscale.runtime.together import Together

_CORES = 4
_use = Together._use


def use(self: Together, entrance: object) -> None:
    torch.set_num_threads(_CORES // len(entrance.commit.members))  # type: ignore[attr-defined]
    _use(self, entrance)  # type: ignore[arg-type]


Together._use = use  # type: ignore[method-assign]
