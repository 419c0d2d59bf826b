"""How many cores this process may really use: its affinity, and the quota of its control groups.

A container with two cores on a host of 64 shows 64 to anybody who only counts processors.
"""

import math
import os
from collections.abc import Iterator
from pathlib import Path

from easyscale.control_groups import Group, groups, number, text


def usable_cores(*, root: Path = Path("/")) -> int:
    """At least one; `root` is where /proc and /sys are looked for."""
    return max(1, min([_affinity(), *(math.floor(quota) for quota in _quotas(root))]))


def _affinity() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _quotas(root: Path) -> Iterator[float]:
    """Cores allowed by each control group from ours up; any of them may be the tightest."""
    for group in groups("cpu", root=root):
        allowed = _allowed(group)
        if allowed is not None:
            yield allowed


def _allowed(group: Group) -> float | None:
    if group.is_unified:
        words = text(group.folder / "cpu.max").split()
        known = len(words) == 2 and all(word.isdecimal() for word in words)  # noqa: PLR2004
        return int(words[0]) / int(words[1]) if known else None
    # -1 says that there is none.
    quota = number(group.folder / "cpu.cfs_quota_us")
    period = number(group.folder / "cpu.cfs_period_us")
    return quota / period if quota is not None and period else None
