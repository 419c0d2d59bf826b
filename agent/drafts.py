"""Plans and commits as values, drawn up from a view: which workers, which ranks, why. Pure."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from easyscale.agent.balance import limits, profile, sharing
from easyscale.agent.balance.planner import Layout, Place, follow, plan
from easyscale.agent.memory import Doubt
from easyscale.model import (
    Assignment,
    Commit,
    GenerationNumber,
    LogicalRank,
    Member,
    Mode,
    Occasion,
    OpenGeneration,
    Plan,
    Restored,
    SlotRecord,
    SnapshotReference,
    WorkerId,
)
from easyscale.rendezvous.agreement import JobView

#: A commit names so many restores; what an older one gave up is long gone.
MOST_RESTORES = 16

NO_DOUBTS: Mapping[WorkerId, Doubt] = {}


def slots_of(view: JobView) -> dict[WorkerId, SlotRecord]:
    """The slot of every worker that some registered agent has."""
    return {
        slot.worker: slot
        for node in view.nodes.values()
        for slot in node.record.slots
        if slot.worker is not None
    }


def ranks_of(commit: Commit | None) -> dict[WorkerId, tuple[LogicalRank, ...]]:
    return {member.worker: member.ranks for member in commit.members} if commit else {}


def lay_out(
    view: JobView,
    workers: Iterable[WorkerId],
    *,
    present: Mapping[WorkerId, tuple[LogicalRank, ...]],
    use_all: bool = False,
    doubts: Mapping[WorkerId, Doubt] = NO_DOUBTS,
) -> Layout:
    """The best map of the job's logical ranks onto these workers, within their memory."""
    places = places_of(view, workers, present=present, doubts=doubts)
    return lay_out_on(view, places, use_all=use_all)


def places_of(
    view: JobView,
    workers: Iterable[WorkerId],
    *,
    present: Mapping[WorkerId, tuple[LogicalRank, ...]],
    doubts: Mapping[WorkerId, Doubt] = NO_DOUBTS,
) -> list[Place]:
    """How fast each of these workers is believed to be, and how much its memory holds."""
    workers = tuple(workers)
    times = profile.micro_steps(slots_of(view).values(), doubts)
    usual = max(times.values(), default=1)
    most = bounds(view, workers)
    return [
        Place(worker, times.get(worker, usual), present.get(worker, ()), most.get(worker))
        for worker in workers
    ]


def bounds(view: JobView, workers: Collection[WorkerId]) -> dict[WorkerId, int]:
    """The most ranks of each of these workers that memory bounds; together they hold the job."""
    return limits.bounds(view, slots_of(view), workers)


def lay_out_on(view: JobView, places: Sequence[Place], *, use_all: bool = False) -> Layout:
    """The best map of the job's logical ranks onto these places, which may be made up."""
    assert view.spec is not None
    n = view.spec.logical_workers
    if len(view.spec.layout) == len(places):
        return follow(view.spec.layout, places)
    room = {place.worker: n if place.most is None else place.most for place in places}
    if sum(room.values()) < n:
        room = limits.stretched(room, n)
        places = [replace(place, most=room[place.worker]) for place in places]
    shared = sharing.Sharing.of(view, slots_of(view))
    places = sharing.arrange(places, shared, logical_workers=n, use_all=use_all)
    return plan(places, logical_workers=n, use_all=use_all)


def draft(
    layout: Layout,
    *,
    generation: GenerationNumber,
    mode: Mode,
    order: Sequence[WorkerId],
    main: WorkerId | None,
    reason: str,
    occasion: Occasion = Occasion.NONE,
    step_s: tuple[float, float] | None = None,
) -> Plan:
    """A plan whose process ranks follow `order`; main stays who it is while it is a member."""
    assignments = tuple(Assignment(worker, layout.ranks.get(worker, ())) for worker in order)
    if main not in order:
        main = next(a.worker for a in assignments if LogicalRank(0) in a.ranks)
    return Plan(
        generation=generation,
        mode=mode,
        assignments=assignments,
        main=main,
        reason=reason,
        occasion=occasion,
        step_s=step_s,
    )


def pause(generation: GenerationNumber, reason: str) -> Plan:
    """Nobody is in it: the job stops at the next boundary with a snapshot."""
    return Plan(generation=generation, mode=Mode.BOUNDARY, assignments=(), main=None, reason=reason)


def commit_of(drawn: Plan, view: JobView, *, snapshot: SnapshotReference | None = None) -> Commit:
    """The self-contained record of a plan: with addresses, and with what could still run."""
    addresses = _addresses(view)
    return Commit(
        generation=drawn.generation,
        mode=drawn.mode,
        members=tuple(
            Member(each.worker, addresses.get(each.worker, ""), each.ranks)
            for each in drawn.assignments
        ),
        main=drawn.main,
        reason=drawn.reason,
        open=tuple(OpenGeneration.of(commit, members=drawn.workers) for commit in view.open),
        snapshot=snapshot,
        occasion=drawn.occasion,
        step_s=drawn.step_s,
        restores=_restores(drawn, view, snapshot),
    )


def _restores(
    drawn: Plan, view: JobView, snapshot: SnapshotReference | None
) -> tuple[Restored, ...]:
    """The restores that led to the newest commit, and this one if it is one.

    One that began later than its successor tells nothing that the successor does not.
    """
    commits = (*view.commits.values(), *_offers(view))
    newest = max(commits, key=lambda commit: commit.generation, default=None)
    former = newest.restores if newest is not None else ()
    if drawn.mode is not Mode.RESTORE:
        return former
    step = snapshot.step if snapshot is not None else 0
    kept = (one for one in former if one.step < step)
    lost = max(0, _reached(view) - step)
    return (*kept, Restored(drawn.generation, step, lost))[-MOST_RESTORES:]


def _reached(view: JobView) -> int:
    """The furthest step of the running generation that the store knows of."""
    members = view.base.workers if view.base is not None else ()
    ended = (view.gone[worker].step for worker in members if worker in view.gone)
    return max((view.progress.step if view.progress is not None else 0, *ended))


def _addresses(view: JobView) -> dict[WorkerId, str]:
    """Where each worker listens: as its agent says, else as an earlier commit said."""
    known = {
        member.worker: member.address
        for commit in (*view.commits.values(), *_offers(view))
        for member in commit.members
    }
    known.update({w: slot.address for w, slot in slots_of(view).items() if slot.address})
    return known


def _offers(view: JobView) -> tuple[Commit, ...]:
    return tuple(
        node.record.commit for node in view.nodes.values() if node.record.commit is not None
    )
