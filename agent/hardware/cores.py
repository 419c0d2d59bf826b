"""How many cores this process may really use: its affinity, and the quota of its control groups.

A container with two cores on a host of 64 shows 64 to anybody who only counts processors.
"""

import math
import os
from collections.abc import Iterator
from pathlib import Path


def usable_cores(*, root: Path = Path("/")) -> int:
    """At least one; `root` is where /proc and /sys are looked for."""
    return max(1, min([_affinity(), *(math.floor(quota) for quota in _quotas(root))]))


def _affinity() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _quotas(root: Path) -> Iterator[float]:
    """Cores allowed by each control group from ours up; any of them may be the tightest."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    mount = root / "sys/fs/cgroup"
    for line in lines:
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            yield from _unified(mount, path)
        elif "cpu" in controllers.split(","):
            for folder in (controllers, "cpu"):
                yield from _legacy(mount / folder, path)


def _unified(mount: Path, path: str) -> Iterator[float]:
    for group in _upwards(mount, path):
        words = _read(group / "cpu.max").split()
        if len(words) == 2 and all(word.isdecimal() for word in words):  # noqa: PLR2004
            yield int(words[0]) / int(words[1])


def _legacy(mount: Path, path: str) -> Iterator[float]:
    for group in _upwards(mount, path):
        quota, period = _read(group / "cpu.cfs_quota_us"), _read(group / "cpu.cfs_period_us")
        # -1 says that there is none.
        if quota.isdecimal() and period.isdecimal():
            yield int(quota) / int(period)


def _upwards(mount: Path, path: str) -> Iterator[Path]:
    """Our group's folder and those above it; in a container the inner ones may not be mounted."""
    group = mount / path.lstrip("/")
    while group != mount:
        yield group
        group = group.parent
    yield mount


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
