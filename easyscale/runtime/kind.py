"""What two slots must share to give the same bits, as one short string.

On CPUs instruction set and thread count both change the order in which kernels add; where D2 pins
the libraries to a baseline, only what is left counts. On GPUs the numbers of processors and threads
do, by which kernels divide their work: a slice is of another kind than its whole device.
"""

import os
import platform
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Protocol

import torch

from easyscale.baseline import chosen, is_pinned
from easyscale.kinds import named

#: The instruction sets that CPU libraries choose their kernels by, oldest first.
_DISPATCHED = ("avx2", "fma", "avx512f", "avx512vnni", "avx512bf16", "avx512fp16", "amxbf16")
#: The distributions that bring kernels of their own and can be exchanged beside torch.
_KERNELS = ("nvidia-cublas", "nvidia-cublas-cu12", "nvidia-cublas-cu13", "triton", "pytorch-triton")


class GpuFacts(Protocol):
    """What torch says of a device, as far as it counts here."""

    @property
    def name(self) -> str: ...
    @property
    def major(self) -> int: ...
    @property
    def minor(self) -> int: ...
    @property
    def multi_processor_count(self) -> int: ...
    @property
    def max_threads_per_multi_processor(self) -> int: ...


def cpu_kind(*, threads: int) -> str:
    """Name the kind of this host's CPU slots with that many threads a worker.

    At the baseline processors of all kinds give the same bits, each at a speed of its own: what the
    processor could do is its name.
    """
    capability = torch.backends.cpu.get_cpu_capability().lower()
    processor = "baseline" if is_pinned(os.environ) else _as_told(_processor(), os.environ)
    bits = f"cpu {capability} {processor} torch-{torch.__version__} threads-{threads}"
    return named(bits, _family(_processor()) if is_pinned(os.environ) else "")


def gpu_kind(device: torch.device) -> str:
    """Name the kind of this GPU with the libraries that are loaded here."""
    facts: GpuFacts = torch.cuda.get_device_properties(device)
    return kind_of_gpu(facts, libraries(), is_amd=torch.version.hip is not None)


def kind_of_gpu(facts: GpuFacts, versions: Mapping[str, str], *, is_amd: bool) -> str:
    """Vendor, compute capability, processors, threads of each, libraries; the name in brackets."""
    if is_amd:
        # `gfx942:sramecc+:xnack-`: its modes choose kernels too.
        generation = getattr(facts, "gcnArchName", "") or f"gfx{facts.major}{facts.minor}"
        parts = ["amd", generation, f"{facts.multi_processor_count}-cus"]
    else:
        generation = f"sm-{facts.major}.{facts.minor}"
        parts = ["nvidia", generation, f"{facts.multi_processor_count}-sms"]
    parts.append(f"{facts.max_threads_per_multi_processor}-threads")
    parts += [f"{name}-{version}" for name, version in versions.items()]
    return named(" ".join(parts), facts.name)


def libraries() -> dict[str, str]:
    """Every library whose version reaches what a GPU computes, as far as it is there."""
    found: dict[str, object] = {
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "hip": torch.version.hip,
        "miopen" if torch.version.hip else "cudnn": torch.backends.cudnn.version(),  # type: ignore[no-untyped-call]
    }
    if torch.distributed.is_nccl_available():
        nccl = torch.cuda.nccl.version()  # type: ignore[no-untyped-call]
        found["rccl" if torch.version.hip else "nccl"] = ".".join(map(str, nccl))
    found.update({name.removeprefix("nvidia-"): _installed(name) for name in _KERNELS})
    return {name: str(version) for name, version in found.items() if version}


def _installed(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


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


def _family(processor: str) -> str:
    """`cpu avx512`: the generation of a processor, as kinds of unpinned ones are shown."""
    sets = processor.split("+")[1:]
    newest = "avx512" if "avx512f" in sets else next((each for each in sets if each == "avx2"), "")
    return f"cpu {newest}" if newest else ""


def _first_processor(text: str) -> dict[str, str]:
    lines = text.partition("\n\n")[0].splitlines()
    pairs = (line.partition(":") for line in lines)
    return {name.strip(): value.strip() for name, _, value in pairs}
