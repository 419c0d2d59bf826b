"""What would make a fork of this process unsafe, each found without causing it.

A child of a process with threads may inherit a lock that nobody will ever release, and CUDA does
not survive a fork once it was started, whoever started it.
"""

import ctypes
import os
import sys

_CUDA_NOT_INITIALIZED = 3


def fork_hazard() -> str:
    """Say why a worker forked now could not work; empty: it can."""
    threads = len(os.listdir("/proc/self/task"))  # noqa: PTH208 - a count of names
    if threads != 1:
        return f"{threads} threads run in the process that forks workers"
    if _torch_started_cuda() or _driver_is_started():
        return "CUDA was started in the process that forks workers"
    return ""


def _torch_started_cuda() -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and bool(torch.cuda.is_initialized())


def _driver_is_started() -> bool:
    """Ask the driver, if some library loaded it; the call itself starts nothing."""
    try:
        driver = ctypes.CDLL("libcuda.so.1", mode=os.RTLD_NOLOAD)
    except OSError:
        return False
    count = ctypes.c_int()
    return bool(driver.cuDeviceGetCount(ctypes.byref(count)) != _CUDA_NOT_INITIALIZED)
