"""Keeps freed memory for the next gradient instead of giving it back to the kernel.

Several partial sums live at once and are freed in turn; by default glibc returns them to the kernel
and gets fresh pages, which cost a fault each: measured, 3 to 5 % of a micro-step of 10 ms.
"""

import ctypes

_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
#: The most that glibc takes: what is larger is mapped, and given back, by itself.
_MAPPED_FROM_BYTES = 32 * 1024 * 1024
#: Free memory at the end of the heap up to this size stays with the process.
_KEPT_BYTES = 256 * 1024 * 1024


def keep_freed_memory() -> None:
    """Set glibc's thresholds; another C library has no such call and is left alone."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _MAPPED_FROM_BYTES)
        mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
