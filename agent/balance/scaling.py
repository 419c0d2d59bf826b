"""A profile: the running job is scaled in and out in place, and each size is measured. Pure.

It begins with all slots and leaves one more of them without ranks at each point; then the same for
each kind alone. Nobody stops, nothing is lost: slots without ranks stay members (EDL's profiling).
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace

import msgspec

from easyscale.agent import drafts, words
from easyscale.agent.balance import limits, profile
from easyscale.agent.balance.planner import Layout
from easyscale.agent.balance.scene import Scene
from easyscale.agent.balance.sharing import device_of
from easyscale.agent.memory import Memory, Scaling
from easyscale.balance import MOST_PROFILE_STEPS, ProfilePoint, ProfileRecord
from easyscale.model import Occasion, Plan, SlotRecord, WorkerId

#: Of each curve so many points at most: more slots are thinned out.
MOST_POINTS = 12
#: Steps that a point is measured for, where the wish does not say.
STEPS = 10
#: An agent passes measurements on so often while a profile is made; this many times are enough.
_PASSED_ON = 3


def follow(scene: Scene) -> Memory:
    """Begin, go on with or end the profile that a wish asks for."""
    memory, asked = scene.memory, scene.ask.profile
    scaling = memory.scaling
    if asked is None:
        if scaling is None or scaling.record.done:
            return memory
        return replace(memory, scaling=_ended(scaling, "it was withdrawn"))
    wish_id, wish = asked
    if scaling is None or scaling.wish != wish_id:
        scaling = _begin(scene, wish_id, by=wish.by)
    if scaling.record.done:
        return replace(memory, scaling=scaling)
    if frozenset(scene.ask.stay) != scaling.members:
        ended = _ended(scaling, "its slots changed while it was measured")
        return replace(memory, scaling=ended)
    return replace(memory, scaling=_measure(scene, scaling))


def _ended(scaling: Scaling, reason: str) -> Scaling:
    """Before its last point."""
    record = msgspec.structs.replace(scaling.record, done=True, reason=reason)
    return replace(scaling, record=record)


def _begin(scene: Scene, wish_id: str, *, by: str) -> Scaling:
    """A new leader goes on where the record of the former one ends."""
    view = scene.view
    assert view.spec is not None
    points = sizes(scene.ask.stay, drafts.slots_of(view))
    record = view.profile
    if record is not None and record.wish == wish_id and record.done:
        return Scaling(wish_id, (), frozenset(), record)
    if record is None or record.wish != wish_id or record.planned != len(points):
        record = ProfileRecord(
            wish=wish_id,
            by=by,
            at="",  # whoever writes it knows the time
            logical_workers=view.spec.logical_workers,
            determinism=view.spec.determinism,
            planned=len(points),
        )
    return Scaling(wish_id, points, frozenset(scene.ask.stay), record)


def sizes(
    workers: Sequence[WorkerId], slots: dict[WorkerId, SlotRecord]
) -> tuple[tuple[WorkerId, ...], ...]:
    """Which workers hold ranks at each point: all and ever fewer, then the same of each kind."""
    by_kind: dict[str, list[WorkerId]] = defaultdict(list)
    for worker in _device_by_device(workers):
        by_kind[slots[worker].kind if worker in slots else ""].append(worker)
    found = _curve(_in_turn(by_kind))
    if len(by_kind) > 1:
        for kind in sorted(by_kind):
            found += _curve(by_kind[kind])
    return tuple(dict.fromkeys(found))


def _device_by_device(workers: Sequence[WorkerId]) -> list[WorkerId]:
    """One slot of each device, then a second one of each: few slots are measured undisturbed."""
    turns: Counter[str] = Counter()
    ranked = []
    for worker in sorted(workers):
        device = device_of(worker.place) or worker.place
        ranked.append((turns[device], worker))
        turns[device] += 1
    return [worker for _, worker in sorted(ranked)]


def _in_turn(by_kind: dict[str, list[WorkerId]]) -> list[WorkerId]:
    """All slots so that any first few of them hold each kind in its proportion."""
    ranked = (
        ((i + 1) / len(workers), kind, worker)
        for kind, workers in by_kind.items()
        for i, worker in enumerate(workers)
    )
    return [worker for _, _, worker in sorted(ranked)]


def _curve(workers: Sequence[WorkerId]) -> list[tuple[WorkerId, ...]]:
    total = len(workers)
    points = range(total, 0, -1) if total <= MOST_POINTS else _thinned(total)
    return [tuple(sorted(workers[:size])) for size in points]


def _thinned(total: int) -> list[int]:
    """Sizes that lie evenly on a scale of ratios, both ends among them."""
    ratio = total ** (1 / (MOST_POINTS - 1))
    return sorted({round(ratio**i) for i in range(MOST_POINTS)}, reverse=True)


def _measure(scene: Scene, scaling: Scaling) -> Scaling:
    """Note the point that runs once it has had its steps."""
    view, base, record = scene.view, scene.base, scaling.record
    progress = view.progress
    point = scaling.points[len(record.points)]
    if _holders(scene) != point:
        waiting = replace(scaling, since_s=None)
        return waiting if _layout_of(scene, point) is not None else _skip(waiting)
    since_s = scene.now if scaling.since_s is None else scaling.since_s
    scaling = replace(scaling, since_s=since_s)
    if progress is None or not progress.steps_per_s:
        return scaling
    # What the slots measure in this size has to have come here, too.
    if scene.now - since_s < _PASSED_ON * scene.settings.timeouts.capability_urgent_s:
        return scaling
    begun = max((e.position for e in view.entries.get(base.generation, {}).values()), default=0)
    if progress.position < begun + _steps(scene):
        return scaling
    step_s = 1 / progress.steps_per_s
    slots = drafts.slots_of(view)
    kinds = Counter(slots[w].kind for w in point if w in slots)
    measured = ProfilePoint(
        slots=dict(sorted(kinds.items())),
        counts=tuple(sorted((len(m.ranks) for m in base.members if m.ranks), reverse=True)),
        step_s=step_s,
        micro_steps_per_s=record.logical_workers / step_s,
        predicted_s=profile.seconds(scene.step_now),
        micro_steps={
            w.place: seconds for w in point if w in slots and (seconds := slots[w].rank_s)
        },
    )
    points = (*record.points, measured)
    done = len(points) == len(scaling.points)
    record = msgspec.structs.replace(record, points=points, done=done)
    return replace(scaling, record=record, since_s=None)


def _skip(scaling: Scaling) -> Scaling:
    """A size that no plan uses, say of more slots than logical workers, is no point of it."""
    index = len(scaling.record.points)
    points = scaling.points[:index] + scaling.points[index + 1 :]
    done = len(points) == index
    record = msgspec.structs.replace(scaling.record, planned=len(points), done=done)
    return replace(scaling, points=points, record=record)


def _holders(scene: Scene) -> tuple[WorkerId, ...]:
    return tuple(sorted(worker for worker, held in scene.present.items() if held))


def _steps(scene: Scene) -> int:
    wish = scene.ask.profile
    asked = wish[1].target if wish is not None else ""
    return min(int(asked), MOST_PROFILE_STEPS) if asked.isdecimal() and int(asked) else STEPS


def draw(scene: Scene) -> tuple[Plan | None, str]:
    """The plan of the next point, or what the present one waits for."""
    scaling = scene.memory.scaling
    assert scaling is not None
    index = len(scaling.record.points)
    point = scaling.points[index]
    size = words.count(len(point), "slot")
    reason = f"profile, {index + 1} of {len(scaling.points)}: measures {size}"
    layout = _layout_of(scene, point) if _holders(scene) != point else None
    if layout is None:
        return None, reason
    return scene.draft(layout, reason=reason, occasion=Occasion.PROFILE), ""


def _layout_of(scene: Scene, point: Sequence[WorkerId]) -> Layout | None:
    """All ranks on these members and some on each; None where that cannot be, for memory say."""
    layout = drafts.lay_out(
        scene.view,
        point,
        present={w: held for w, held in scene.present.items() if w in point},
        doubts=scene.memory.doubts,
        use_all=True,
    )
    if not all(layout.ranks.get(worker) for worker in point):
        return None
    slots = drafts.slots_of(scene.view)
    is_beyond = limits.beyond_learned(scene.view, slots, layout.ranks) or limits.beyond_free(
        scene.view, slots, layout.ranks
    )
    return None if is_beyond else layout


def is_under_way(memory: Memory) -> bool:
    return memory.scaling is not None and not memory.scaling.record.done
