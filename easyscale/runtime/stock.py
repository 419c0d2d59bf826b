"""Stock torch's ways to train by process, refused with what to write instead.

Left alone they fail before any check of ours: without a process group torch says that RANK is not
set, or advises to call `init_process_group`, which is the one thing that must not be done here.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any, NoReturn

import torch
from torch import nn
from torch.utils.data import DistributedSampler

from easyscale.errors import ScriptError
from easyscale.guide import Paragraph
from easyscale.runtime.registry import group_refusal

_parallel_init = nn.parallel.DistributedDataParallel.__init__
_sampler_init = DistributedSampler.__init__


def refuse_stock_parallelism() -> None:
    """From here on the entry points of torch's training by process raise ScriptError."""
    replacements: list[tuple[object, str, Callable[..., Any]]] = [
        (nn.parallel.DistributedDataParallel, "__init__", _refuse_parallel),
        (DistributedSampler, "__init__", _refuse_sampler_by_process),
    ]
    if torch.distributed.is_available():
        from torch.distributed import distributed_c10d  # noqa: PLC0415 - absent in some builds

        replacements.append((torch.distributed, "init_process_group", _refuse_group))
        # A script that took the function by its name before cannot be given another one; these are
        # the two ways that it goes, whichever of its arguments are given.
        replacements += [
            (distributed_c10d, name, _refuse_group)
            for name in ("rendezvous", "_new_process_group_helper")
            if hasattr(distributed_c10d, name)
        ]
    for owner, name, replacement in replacements:
        setattr(owner, name, replacement)


def _refuse_group(*_: object, **__: object) -> NoReturn:
    raise group_refusal("init_process_group makes ranks of processes, which come and go here")


@wraps(_parallel_init)
def _refuse_parallel(*_: object, **__: object) -> NoReturn:
    raise ScriptError(
        "DistributedDataParallel adds gradients by process, and processes come and go",
        hint="job.register(model=model) with the bare module: its gradients are added already",
        see=Paragraph.WRAPPERS,
    )


@wraps(_sampler_init)
def _refuse_sampler_by_process(
    self: DistributedSampler[Any],
    dataset: Any,  # noqa: ANN401 - torch's own signature
    num_replicas: int | None = None,
    rank: int | None = None,
    *others: Any,  # noqa: ANN401
    **named: Any,  # noqa: ANN401
) -> None:
    if num_replicas is None or rank is None:
        raise ScriptError(
            "a DistributedSampler deals samples by process, and processes come and go",
            hint="job.loader(dataset, batch_size=...): it deals them by logical rank",
            see=Paragraph.SAMPLERS,
        )
    _sampler_init(self, dataset, num_replicas, rank, *others, **named)
