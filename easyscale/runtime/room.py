"""How much memory a worker could still take, and what one more partial sum of gradients would."""

from pathlib import Path

import torch

from easyscale.runtime.training import Training

_MEMINFO = Path("/proc/meminfo")


def free_bytes(device: torch.device) -> int | None:
    """What the device, or the host for a CPU slot, has free; None where nothing says so."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        # The allocator's own reserve is as free as what the driver still has.
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    try:
        lines = _MEMINFO.read_text().splitlines()
    except OSError:
        return None
    available = next((line for line in lines if line.startswith("MemAvailable:")), None)
    return int(available.split()[1]) * 1024 if available is not None else None


def partial_bytes(training: Training) -> int:
    """The size of one partial sum where it waits; 0 where it waits elsewhere than on the device."""
    if training.settings.offload_partials:
        return 0
    parameters = training.things.parameters.values()
    return sum(p.numel() * p.element_size() for p in parameters if p.requires_grad)
