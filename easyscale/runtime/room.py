"""How much memory a worker could still take, what it took, and what one more partial sum would."""

from pathlib import Path
from typing import Final

import torch

from easyscale.control_groups import Group, groups, number, numbers
from easyscale.runtime.training import Training

_ROOT: Final = Path("/")
#: Where a group's limit and its use stand, by version.
_FILES_2: Final = ("memory.max", "memory.current")
_FILES_1: Final = ("memory.limit_in_bytes", "memory.usage_in_bytes")
#: What it counts as used and the kernel takes back before it lets anybody run out, by version.
_RECLAIMED_2: Final = ("inactive_file", "active_file", "slab_reclaimable")
_RECLAIMED_1: Final = ("total_inactive_file", "total_active_file")

#: How the first version says that there is none: as many pages as an address may count.
_NO_LIMIT: Final = 1 << 60


def free_bytes(device: torch.device, *, root: Path = _ROOT) -> int | None:
    """What the device has free, or the host and our control groups; None where nothing says so.

    On a CPU all slots of the node share it: what each may take of it is whoever plans' to say.
    """
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        # The allocator's own reserve is as free as what the driver still has.
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    bounds = [_of_host(root), *(_of_group(group) for group in groups("memory", root=root))]
    return min((bound for bound in bounds if bound is not None), default=None)


def _of_host(root: Path) -> int | None:
    kilobytes = numbers(root / "proc/meminfo").get("MemAvailable")
    return None if kilobytes is None else kilobytes * 1024


def _of_group(group: Group) -> int | None:
    """What its limit leaves; the cache of files gives way to whoever needs memory."""
    names = _FILES_2 if group.is_unified else _FILES_1
    reclaimed = _RECLAIMED_2 if group.is_unified else _RECLAIMED_1
    limit, used = (number(group.folder / name) for name in names)
    if limit is None or limit >= _NO_LIMIT or used is None:
        return None
    facts = numbers(group.folder / "memory.stat")
    return max(0, limit - used + sum(facts.get(name, 0) for name in reclaimed))


def taken_bytes(device: torch.device, *, root: Path = _ROOT) -> int | None:
    """What this process has of the device at its fullest, or of the host's memory now."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    kilobytes = numbers(root / "proc/self/status").get("RssAnon")
    return None if kilobytes is None else kilobytes * 1024


def partial_bytes(training: Training) -> int:
    """The size of one partial sum where it waits; 0 where it waits elsewhere than on the device."""
    if training.settings.offload_partials:
        return 0
    parameters = training.things.parameters.values()
    return sum(p.numel() * p.element_size() for p in parameters if p.requires_grad)
