"""The control groups that hold this process, as folders: what a container may use is said there.

Both versions of them; those above ours count too, since any of them may be the tightest.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple


class Group(NamedTuple):
    """One group, as its folder."""

    folder: Path
    #: Version 2, with one folder for all controllers.
    is_unified: bool


def groups(controller: str, *, root: Path = Path("/")) -> Iterator[Group]:
    """Ours with that controller, then those above; `root` is where /proc and /sys are."""
    mount = root / "sys/fs/cgroup"
    for line in text(root / "proc/self/cgroup").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            yield from (Group(folder, is_unified=True) for folder in _upwards(mount, path))
        elif controller in controllers.split(","):
            for name in dict.fromkeys((controllers, controller)):
                above = _upwards(mount / name, path)
                yield from (Group(folder, is_unified=False) for folder in above)


def _upwards(mount: Path, path: str) -> Iterator[Path]:
    """Our group's folder and those above it; in a container the inner ones may not be mounted."""
    group = mount / path.lstrip("/")
    while group != mount:
        yield group
        group = group.parent
    yield mount


def text(path: Path) -> str:
    """What a file of the kernel says; empty where there is none."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def number(path: Path) -> int | None:
    """The number that a file of the kernel holds; None where there is none, or `max`."""
    said = text(path)
    return int(said) if said.isdecimal() else None


def numbers(path: Path) -> dict[str, int]:
    """The lines `name number` of a file of the kernel."""
    pairs = (line.split() for line in text(path).splitlines())
    return {pair[0].rstrip(":"): int(pair[1]) for pair in pairs if pair[1:] and pair[1].isdecimal()}
