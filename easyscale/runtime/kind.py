"""What two CPU slots must share to give the same bits, as one short string.

Instruction set and thread count both change the order in which kernels add. Where D2 pins the
libraries to a baseline, only what is left counts.
"""

import os
import platform
from collections.abc import Mapping
from pathlib import Path

import torch

from easyscale.baseline import chosen, is_pinned

#: The instruction sets that CPU libraries choose their kernels by, oldest first.
_DISPATCHED = ("avx2", "fma", "avx512f", "avx512vnni", "avx512bf16", "avx512fp16", "amxbf16")


def cpu_kind(*, threads: int) -> str:
    """Name the kind of this host's CPU slots with that many threads a worker."""
    capability = torch.backends.cpu.get_cpu_capability().lower()
    processor = "baseline" if is_pinned(os.environ) else _as_told(_processor(), os.environ)
    return f"cpu {capability} {processor} torch-{torch.__version__} threads-{threads}"


def _as_told(processor: str, environment: Mapping[str, str]) -> str:
    """A library that was told which kernels to take is of another kind than one that chooses."""
    told = (f"{name}={value.replace(' ', ',')}" for name, value in chosen(environment).items())
    return "+".join((processor, *told))


def _processor() -> str:
    """Vendor and instruction sets, since MKL and oneDNN choose by both."""
    try:
        facts = _first_processor(Path("/proc/cpuinfo").read_text())
    except OSError:
        return platform.machine()
    flags = set(facts.get("flags", "").replace("_", "").split())
    names = (name for name in _DISPATCHED if name in flags)
    return "+".join((facts.get("vendor_id", platform.machine()), *names))


def _first_processor(text: str) -> dict[str, str]:
    lines = text.partition("\n\n")[0].splitlines()
    pairs = (line.partition(":") for line in lines)
    return {name.strip(): value.strip() for name, _, value in pairs}
