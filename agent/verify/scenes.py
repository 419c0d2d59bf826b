"""The runs that a job is compared in: layouts, changes, a kill, a restore, as plain values. Pure.

Each is the same training; what happens in it happens before a step that is fixed beforehand.
"""

from collections.abc import Sequence
from itertools import pairwise

import msgspec

#: Logical ranks of each worker, by its number in the scene; None where it is no member.
Shares = tuple[tuple[int, ...] | None, ...]

#: A scattered layout deals ranks to three workers in this pattern.
_PATTERN = (0, 2, 0, 1, 0, 0, 2, 0, 1, 0, 2, 0, 0, 1, 0, 2)
_LOADER_WORKERS = 2
#: A change is agreed on in the step before it, so that two of them are two steps apart.
_APART = 2


class Change(msgspec.Struct, frozen=True):
    """From this step on the ranks are dealt so."""

    step: int
    shares: Shares


class Scene(msgspec.Struct, frozen=True, kw_only=True):
    """One run."""

    name: str
    shares: Shares
    changes: tuple[Change, ...] = ()
    #: This worker ends by SIGKILL in this step, and the ranks are dealt so from then on.
    killed: tuple[int, Change] | None = None
    #: All leave before this step, and new workers go on from the snapshot.
    restored: Change | None = None
    other_loader_workers: int | None = None
    #: All workers are of the second host, whose sets have another order.
    on_other_host: bool = False

    @property
    def workers(self) -> int:
        """How many workers take part before a restore."""
        return len(self.shares)

    @property
    def layout(self) -> str:
        """As a screen shows it: `8+8 -> 8+4+4`."""
        all_shares = [self.shares, *(change.shares for change in self._all_changes)]
        texts = [shares_text(shares) for shares in all_shares]
        return " -> ".join([texts[0], texts[-1]] if len(texts) > 1 else texts)

    @property
    def change(self) -> str:
        """`steps 9, 17, 18`, or nothing."""
        steps = [f"{change.step:,}" for change in self._all_changes]
        word = "step" if len(steps) == 1 else "steps"
        return f"{word} {', '.join(steps)}" if steps else ""

    @property
    def _all_changes(self) -> tuple[Change, ...]:
        killed = () if self.killed is None else (self.killed[1],)
        restored = () if self.restored is None else (self.restored,)
        return (*self.changes, *killed, *restored)


def shares_text(shares: Shares) -> str:
    """`8+8`, `4 each` or `1 each`."""
    counts = [len(share) for share in shares if share is not None]
    if len(counts) > 2 and len(set(counts)) == 1:  # noqa: PLR2004 - two are shown as a sum
        return f"{counts[0]} each"
    return "+".join(map(str, counts))


def fixed_scene(n: int) -> Scene:
    """What all others are held against."""
    return Scene(name="fixed, 1 process", shares=(tuple(range(n)),))


def again_scene(n: int) -> Scene:
    """The same once more: a script that differs from itself cannot be compared."""
    return Scene(name="fixed, other hash order", shares=(tuple(range(n)),), on_other_host=True)


def changing_scenes(n: int, *, steps: int, width: int) -> tuple[Scene, ...]:
    """Everything else, for a job of N logical workers and so many compared steps."""
    scenes = [again_scene(n)]
    if n > 1:
        scenes.append(_spread(n, min(n, width)))
        scenes.append(_scattered(n))
    if steps > 1:
        scenes.append(_in_place(n, _moments(steps)))
        scenes.append(_killed(n, max(1, round(steps * 0.4))))
        scenes.append(_restored(n, steps // 2))
    scenes.append(
        Scene(
            name="other loader workers",
            shares=_parts(n, 2),
            other_loader_workers=_LOADER_WORKERS,
        )
    )
    return tuple(scenes)


def brief_scenes(scenes: Sequence[Scene]) -> tuple[Scene, ...]:
    """The repeated run and those in which something happens: they have other layouts as well."""
    brief = tuple(
        scene
        for scene in scenes
        if scene.on_other_host or scene.changes or scene.killed or scene.restored
    )
    return brief if len(brief) > 1 else tuple(scenes)  # a job of one step has no changes


def _moments(steps: int) -> list[int]:
    """Up to three steps before which something changes."""
    moments: list[int] = []
    for part in (0.3, 0.55, 0.75):
        earliest = moments[-1] + _APART if moments else 1
        moments.append(max(earliest, round(steps * part)))
    return [moment for moment in moments if moment < steps]


def _spread(n: int, width: int) -> Scene:
    return Scene(name=f"{width} workers", shares=_parts(n, width))


def _scattered(n: int) -> Scene:
    workers = min(n, 3)
    dealt: list[list[int]] = [[] for _ in range(workers)]
    for rank in range(n):
        dealt[_PATTERN[rank % len(_PATTERN)] % workers].append(rank)
    for worker in range(workers):
        if not dealt[worker]:
            longest = max(dealt, key=len)
            dealt[worker].append(longest.pop())
    return Scene(name="uneven and scattered", shares=tuple(tuple(share) for share in dealt))


def _in_place(n: int, steps: Sequence[int]) -> Scene:
    """A third worker joins, ranks move, and the first one leaves."""
    first, second = _parts(n, 2)
    half = len(second) // 2
    joined = (first, second[: len(second) - half], second[len(second) - half :])
    moved = (first[:-1], first[-1:] + joined[1], joined[2]) if len(first) > 1 else joined
    left = (None, first + joined[1], joined[2])
    changes = tuple(
        Change(step, shares) for step, shares in zip(steps, (joined, moved, left), strict=False)
    )
    return Scene(name="changing in place", shares=(first, second, None), changes=changes)


def _killed(n: int, step: int) -> Scene:
    first, second = _parts(n, 2)
    if not second:
        return Scene(
            name="SIGKILL in reduce",
            shares=(first, ()),
            killed=(0, Change(step, (None, first))),
        )
    return Scene(
        name="SIGKILL in reduce",
        shares=(first, second),
        killed=(1, Change(step, (first + second, None))),
    )


def _restored(n: int, step: int) -> Scene:
    first, second = _parts(n, 2)
    ranks = first + second
    cut = max(1, (3 * n) // 8)
    after: Shares = (ranks[:cut], ranks[cut:]) if n > 1 else (ranks,)
    before: Shares = (first, second) if second else (first,)
    return Scene(name="snapshot and restore", shares=before, restored=Change(step, after))


def _parts(n: int, workers: int) -> tuple[tuple[int, ...], ...]:
    """Contiguous shares, as equal as they can be; empty ones at the end where ranks are few."""
    bounds = [n * worker // workers for worker in range(workers + 1)]
    parts = [tuple(range(lo, hi)) for lo, hi in pairwise(bounds)]
    return tuple(sorted(parts, key=lambda part: (not part, part)))
