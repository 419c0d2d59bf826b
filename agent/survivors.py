"""Who is left of the running generation, and whether that asks for a new one: pure.

An exit is proof, a broken report is a cry for help, a lease that ran out is only a suspicion.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from easyscale.agent.memory import Memory
from easyscale.agent.verdicts import Standpoint
from easyscale.agent.words import places
from easyscale.model import BrokenReport, Commit, Mode, WorkerId
from easyscale.rendezvous.agreement import JobView

#: Up to so many members with a bad link the best subset is searched, above it is grown greedily.
SEARCHED = 16


@dataclass(frozen=True, slots=True)
class Standing:
    """What the reports say about the workers that should be running."""

    #: Ended, and nobody had asked them to.
    lost: tuple[WorkerId, ...]
    #: Without a lease for too long, or while the work stands still.
    evicted: tuple[WorkerId, ...]
    #: Without a lease, but the work goes on with them.
    suspect: tuple[WorkerId, ...]
    broken: Mapping[WorkerId, BrokenReport]
    #: Living members that hold the training state.
    left: tuple[WorkerId, ...]

    @property
    def calls_for_change(self) -> bool:
        return bool(self.lost or self.evicted or self.broken)


def running(view: JobView) -> tuple[Commit, ...]:
    """The generations whose members may be at work now: a report about an older one is stale.

    From the newest on that interrupts every wait, or that all members have entered (as `open` is).
    """
    since = [c.generation for c in view.open if c.mode is not Mode.BOUNDARY]
    first = max(since, default=None)
    return tuple(c for c in view.open if first is None or c.generation >= first)


def standing(at: Standpoint, memory: Memory) -> Standing:
    """Sort the members of the running generations by what is known about them."""
    view, now = at.view, at.now
    current = running(view)
    named = sorted({worker for commit in current for worker in commit.workers})
    broken = {
        worker: report
        for commit in current
        for worker, report in sorted(view.breaks.get(commit.generation, {}).items())
        if view.is_present(worker)
    }
    away = [w for w in named if not view.ended(w) and not view.is_present(w)]
    patient = _patience_ends(at, memory) > now and not broken
    evicted = tuple(
        worker
        for worker in away
        if not patient or memory.without_lease_s(worker, now) >= at.timeouts.evict_after_s
    )
    return Standing(
        lost=tuple(worker for worker in named if _is_lost(view, worker, waited_for=bool(broken))),
        evicted=evicted,
        suspect=tuple(worker for worker in away if worker not in evicted),
        broken=broken,
        left=_left(view, current),
    )


def _is_lost(view: JobView, worker: WorkerId, *, waited_for: bool) -> bool:
    """Ended. Whoever finished or left in order is not lost, unless somebody waits for it."""
    if not view.ended(worker):
        return False
    ending = view.gone.get(worker)
    in_order = ending is not None and (ending.finished or ending.drained)
    return not in_order or (waited_for and worker in view.base.workers if view.base else False)


def _patience_ends(at: Standpoint, memory: Memory) -> float:
    """Until when a lost lease alone counts for nothing: while the work goes on, it is the store."""
    timeouts, progress = at.timeouts, at.view.progress
    rate = progress.steps_per_s if progress else None
    stall_s = max(timeouts.stall_least_s, timeouts.stall_steps / rate if rate else 0.0)
    # Most registrations vanishing together is the store's hiccup, not theirs; so is one that is
    # missing when the store has just been away from us too.
    hiccup_s = max(memory.guarded_until_s, at.store_back_s + timeouts.mass_guard_s)
    return max(memory.moved_s + stall_s, hiccup_s)


def perhaps_last(known: Standing, view: JobView) -> tuple[WorkerId, ...]:
    """Holders in a broken group whom a planned change leaves out, where nobody else is heard.

    Who was to go on by it has not passed the boundary, and may be what broke
    (docs/decisions/0023-who-shall-leave-holds-the-state.md).
    """
    base = view.base
    if base is None or base.mode is not Mode.BOUNDARY or view.entries.get(base.generation):
        return ()
    if any(worker in known.broken for worker in known.left):
        return ()
    waiting = (w for w in known.broken if w not in base.workers and w not in known.left)
    return tuple(worker for worker in waiting if view.holds_state(worker))


def _left(view: JobView, current: Iterable[Commit]) -> tuple[WorkerId, ...]:
    """The living holders of the newest generation that has any, in its order."""
    for commit in sorted(current, key=lambda c: c.generation, reverse=True):
        holders = tuple(w for w in commit.workers if view.is_present(w) and view.holds_state(w))
        if holders:
            return holders
    return ()


@dataclass(frozen=True, slots=True)
class Circle:
    """Who goes on of a set that has failed to meet, and whose word is missing."""

    members: tuple[WorkerId, ...]
    #: Suspected by others, and has not said whom it suspects itself.
    unheard: tuple[WorkerId, ...]
    #: Counting the unheard as alive, more could go on.
    is_smaller: bool


def circle(
    left: tuple[WorkerId, ...],
    broken: Mapping[WorkerId, BrokenReport],
    main: WorkerId | None,
    *,
    heard: Collection[WorkerId],
) -> Circle:
    """Those that reach one another, without who was suspected and says nothing.

    Whoever speaks lives. A node that has ended says nothing, and would often be the larger part.
    """
    suspected = {suspect for report in broken.values() for suspect in report.suspects}
    unheard = tuple(worker for worker in left if worker in suspected and worker not in heard)
    speaking = tuple(worker for worker in left if worker not in unheard)
    members = connected(speaking, broken, main)
    return Circle(members, unheard, len(members) < len(connected(left, broken, main)))


def connected(
    left: tuple[WorkerId, ...], broken: Mapping[WorkerId, BrokenReport], main: WorkerId | None
) -> tuple[WorkerId, ...]:
    """The largest subset in which nobody suspects anybody; a pair is bad if either side says so.

    Ties go to the subset with main, then to the lowest ids.
    """
    bad = {
        frozenset((worker, suspect))
        for worker, report in broken.items()
        for suspect in report.suspects
        if worker in left and suspect in left and worker != suspect
    }
    doubtful = sorted({worker for pair in bad for worker in pair})
    chosen = (
        _search(doubtful, bad, main) if len(doubtful) <= SEARCHED else _grow(doubtful, bad, main)
    )
    return tuple(worker for worker in left if worker not in doubtful or worker in chosen)


def _search(
    doubtful: list[WorkerId], bad: set[frozenset[WorkerId]], main: WorkerId | None
) -> frozenset[WorkerId]:
    best: tuple[int, bool, tuple[int, ...]] = (0, False, ())
    found: frozenset[WorkerId] = frozenset()
    for mask in range(1 << len(doubtful)):
        chosen = frozenset(w for i, w in enumerate(doubtful) if mask >> i & 1)
        if any(pair <= chosen for pair in bad):
            continue
        order = tuple(-i for i in range(len(doubtful)) if mask >> i & 1)
        rank = (len(chosen), main in chosen, order)
        if rank > best:
            best, found = rank, chosen
    return found


def _grow(
    doubtful: list[WorkerId], bad: set[frozenset[WorkerId]], main: WorkerId | None
) -> frozenset[WorkerId]:
    """Add whoever has the fewest bad links first: a large subset, not always the largest."""
    links = {w: sum(w in pair for pair in bad) for w in doubtful}
    chosen: frozenset[WorkerId] = frozenset()
    for worker in sorted(doubtful, key=lambda w: (links[w], w != main, w)):
        if all(frozenset((worker, other)) not in bad for other in chosen):
            chosen |= {worker}
    return chosen


def describe(standing: Standing) -> str:
    """Why a generation must follow, as the first part of its reason."""
    parts = []
    if standing.lost:
        parts.append(f"{places(standing.lost)} ended")
    if standing.evicted:
        parts.append(f"{places(standing.evicted)} silent")
    if standing.broken and not parts:
        parts.append(next(iter(standing.broken.values())).reason)
    return "; ".join(parts)
