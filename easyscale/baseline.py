"""What D2 pins before torch is imported, so that processors of all kinds compute the same bits.

One baseline per architecture, which every server of it has: agents pin it before they have met.
"""

import platform
from collections.abc import Mapping

#: Kernels that NumPy compiles for newer processors; names that it does not know do no harm.
_NUMPY_BEYOND = "AVX512F AVX512CD AVX512_SKX AVX512_CLX AVX512_CNL AVX512_ICL AVX512_SPR"

CPU_BASELINE: Mapping[str, Mapping[str, str]] = {
    "x86_64": {
        "ATEN_CPU_CAPABILITY": "avx2",
        "ONEDNN_MAX_CPU_ISA": "AVX2",
        "MKL_CBWR": "AVX2",
        # NumPy's: what makes batches reaches the bits as well.
        "OPENBLAS_CORETYPE": "Haswell",
        "NPY_DISABLE_CPU_FEATURES": _NUMPY_BEYOND,
    },
}

#: Variables by which libraries choose their kernels: slots that differ in one differ in kind.
CHOOSING = (
    *CPU_BASELINE["x86_64"],
    "DNNL_MAX_CPU_ISA",
    "MKL_ENABLE_INSTRUCTIONS",
    "ONEDNN_DEFAULT_FPMATH_MODE",
)


def baseline(machine: str | None = None) -> Mapping[str, str]:
    """The pins of this architecture; none where nothing is known to differ within it."""
    name = platform.machine() if machine is None else machine
    return CPU_BASELINE.get({"AMD64": "x86_64"}.get(name, name), {})


def is_pinned(environment: Mapping[str, str], *, machine: str | None = None) -> bool:
    """Whether a process with this environment computes at the baseline."""
    pins = baseline(machine)
    return bool(pins) and all(environment.get(name) == value for name, value in pins.items())


def chosen(environment: Mapping[str, str]) -> dict[str, str]:
    """What this environment says about kernels beside the processor's own word."""
    return {name: environment[name] for name in CHOOSING if environment.get(name)}
