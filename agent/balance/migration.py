"""What one slot or node holds moves to another in one switch: targets join, sources leave. Pure.

Sources train on until a target is ready to take over; then one plan does both (EDL's migration).
"""

from collections.abc import Sequence

from easyscale.agent import drafts, words
from easyscale.agent.balance import limits
from easyscale.agent.balance.planner import Place, plan
from easyscale.agent.balance.scene import Scene
from easyscale.agent.wishes import moves_away
from easyscale.model import (
    Assignment,
    LogicalRank,
    Mode,
    Occasion,
    Plan,
    Wish,
    WorkerId,
)


def migrate(scene: Scene, wish: Wish) -> tuple[Plan | None, str]:
    """The switch that the wish asks for, or what it waits for."""
    sources = [worker for worker in scene.base.workers if moves_away(wish, worker)]
    by = f" ({wish.by})" if wish.by else ""
    if not any(scene.present[worker] for worker in sources):
        return _release(scene, sources, reason=f"{words.places(sources)} moved{by}"), ""
    takers = _takers(scene, wish.target)
    if not takers:
        return None, f"migration waits for {wish.target}: no worker there is ready to take over"
    moved = _deal(scene, sources, takers)
    stay = [worker for worker in scene.base.workers if worker not in sources]
    if not any(scene.view.holds_state(worker) for worker in stay):
        # A generation shares a member with the one before: who has moved leaves in the next one.
        stay = [*stay, *sources]
    order = [*stay, *(worker for worker in sorted(moved) if worker not in stay)]
    present = {w: held for w, held in scene.present.items() if w not in sources}
    assignments = tuple(
        Assignment(worker, tuple(sorted((*present.get(worker, ()), *moved.get(worker, ())))))
        for worker in order
    )
    given = {each.worker: each.ranks for each in assignments}
    slots = drafts.slots_of(scene.view)
    over = limits.beyond_learned(scene.view, slots, given)
    over = over or limits.beyond_free(scene.view, slots, given)
    if over:
        return None, f"migration waits for {wish.target}: {over}"
    reason = f"{words.places(sources)} → {words.places(sorted(moved))}{by}"
    return _plan(scene, assignments, reason=reason, occasion=Occasion.MIGRATION), ""


def _release(scene: Scene, sources: Sequence[WorkerId], *, reason: str) -> Plan:
    """The sources hold nothing any more, and go."""
    assignments = tuple(
        Assignment(member.worker, member.ranks)
        for member in scene.base.members
        if member.worker not in sources
    )
    return _plan(scene, assignments, reason=reason, occasion=Occasion.NONE)


def _plan(
    scene: Scene, assignments: tuple[Assignment, ...], *, reason: str, occasion: Occasion
) -> Plan:
    main = scene.base.main
    if main not in {each.worker for each in assignments}:
        main = next(each.worker for each in assignments if LogicalRank(0) in each.ranks)
    return Plan(
        generation=scene.generation,
        mode=Mode.BOUNDARY,
        assignments=assignments,
        main=main,
        reason=reason,
        occasion=occasion,
    )


def _takers(scene: Scene, target: str) -> list[WorkerId]:
    """Ready workers of the target, those that hold nothing first."""
    node, _, slot = target.partition("/")
    fresh = [each.worker for each in scene.ask.fresh if each.worker is not None]
    there = [w for w in (*fresh, *scene.ask.stay) if w.node == node and slot in ("", w.slot)]
    return sorted(there, key=lambda worker: (len(scene.present.get(worker, ())), worker))


def _deal(
    scene: Scene, sources: Sequence[WorkerId], takers: Sequence[WorkerId]
) -> dict[WorkerId, tuple[LogicalRank, ...]]:
    """One source to one taker where there are enough; else all their ranks by the takers' speed."""
    present = scene.present
    holding = [worker for worker in sources if present[worker]]
    free = [worker for worker in takers if not present.get(worker)]
    if len(free) >= len(holding):
        return {taker: present[source] for source, taker in zip(holding, free, strict=False)} or {
            takers[0]: ()
        }
    ranks = sorted(rank for worker in holding for rank in present[worker])
    times = scene.times
    usual = max(times.values(), default=1)
    layout = plan(
        [Place(worker, times.get(worker, usual)) for worker in takers],
        logical_workers=len(ranks),
    )
    return {worker: tuple(ranks[index] for index in held) for worker, held in layout.ranks.items()}


def has_moved(wish: Wish, members: Sequence[WorkerId]) -> bool:
    """Nothing of what the wish names is a member any more."""
    return not any(moves_away(wish, worker) for worker in members)
