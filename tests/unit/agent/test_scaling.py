"""Which sizes a profile goes through, and where it goes on when another agent leads."""

from dataclasses import replace
from pathlib import Path

import msgspec

from easyscale.agent.balance import keeping, scaling
from easyscale.agent.balance.scene import Scene
from easyscale.agent.memory import Memory
from easyscale.agent.wants import wanted
from easyscale.balance import MOST_PROFILE_STEPS, ProfilePoint, ProfileRecord
from easyscale.model import SlotRecord, Wish, WorkerId
from tests.support.views import KEYS, Job, commit, job_spec, launch_settings, worker

A, B, C = worker("a"), worker("b"), worker("c")


def slots(**kinds: int) -> dict[WorkerId, SlotRecord]:
    workers = [(kind, worker(f"{kind}/{i}")) for kind, n in kinds.items() for i in range(n)]
    return {w: SlotRecord(w.slot, kind, w) for kind, w in workers}


def shapes(found: tuple[tuple[WorkerId, ...], ...]) -> list[str]:
    return ["+".join(sorted(w.node for w in point)) for point in found]


def test_one_kind_is_scaled_in_slot_by_slot() -> None:
    known = slots(h=3)
    assert shapes(scaling.sizes(tuple(known), known)) == ["h+h+h", "h+h", "h"]


def test_kinds_keep_their_proportion_together_and_are_measured_alone() -> None:
    known = slots(a=2, h=2)
    assert shapes(scaling.sizes(tuple(known), known)) == [
        "a+a+h+h", "a+a+h", "a+h", "a", "a+a", "h+h", "h",
    ]  # fmt: skip


def test_many_slots_are_thinned_out_from_all_to_one() -> None:
    known = slots(h=500)
    sizes = [len(point) for point in scaling.sizes(tuple(known), known)]
    assert sizes == sorted(sizes, reverse=True)
    assert (sizes[0], sizes[-1]) == (500, 1)
    assert len(sizes) <= scaling.MOST_POINTS


def scene(
    record: ProfileRecord | None,
    *,
    ranks: tuple[int, int, int] = (4, 4, 1),
    partial_bytes: int | None = None,
) -> Scene:
    spec = job_spec(logical_workers=9)
    job = Job(spec).leads()
    for name in "abc":
        job.node(name, ("in_use", 0.1))
    bounds = [sum(ranks[:i]) for i in range(4)]
    held = {w: range(bounds[i], bounds[i + 1]) for i, w in enumerate((A, B, C))}
    job.committed(commit(1, held)).progress(100)
    job.put(KEYS.wish("w1"), Wish(kind="profile", target="5", by="ann"))
    for each in (A, B, C) if partial_bytes else ():
        job.slot(each, free_bytes=0, partial_bytes=partial_bytes)
    if record is not None:
        job.put(KEYS.profile, record)
    view, settings = job.view(), launch_settings()
    base = view.base
    assert base is not None
    return Scene(view, base, wanted(view, base, settings), Memory(), settings, 100.0)


def point(n: int) -> ProfilePoint:
    return ProfilePoint(
        slots={"cpu": n}, counts=(3,) * n, step_s=0.3, micro_steps_per_s=30.0, predicted_s=0.3
    )


def record(*points: ProfilePoint, wish: str = "w1", done: bool = False) -> ProfileRecord:
    return ProfileRecord(
        wish=wish, by="ann", at="t", logical_workers=9, planned=3, points=points, done=done
    )


def measured(at: Scene) -> Memory:
    """What is known once the agents have had the time to pass on what slots measure."""
    memory = scaling.follow(at)
    return scaling.follow(replace(at, memory=memory, now=at.now + 2.0))


def test_a_size_is_measured_once_its_slots_have_told_what_they_measure_in_it() -> None:
    at = scene(None)
    memory = scaling.follow(at)
    memory = scaling.follow(replace(at, memory=memory, now=at.now + 1.0))
    assert memory.scaling is not None
    assert memory.scaling.record.points == ()
    memory = scaling.follow(replace(at, memory=memory, now=at.now + 2.0))
    assert memory.scaling is not None
    assert len(memory.scaling.record.points) == 1


def test_a_profile_begins_with_the_size_that_runs() -> None:
    memory = measured(scene(None))
    assert memory.scaling is not None
    assert [each.slots for each in memory.scaling.record.points] == [{"cpu": 3}]
    assert memory.scaling.record.points[0].micro_steps == {f"{name}/cpu:0": 0.1 for name in "abc"}


def test_another_leader_goes_on_where_the_record_ends() -> None:
    at = scene(record(point(3)))
    memory = scaling.follow(at)
    assert memory.scaling is not None
    assert len(memory.scaling.record.points) == 1
    plan, _ = scaling.draw(replace(at, memory=memory))
    assert plan is not None
    assert [len(each.ranks) for each in plan.assignments] == [5, 4, 0]
    assert plan.workers == (A, B, C), "nobody leaves"


def test_a_size_that_memory_does_not_hold_is_left_out() -> None:
    at = scene(record(point(3)), partial_bytes=100)
    plan, _ = scaling.draw(replace(at, memory=scaling.follow(at)))
    assert plan is not None
    assert [len(each.ranks) for each in plan.assignments] == [5, 4, 0]
    memory = scaling.follow(scene(record(point(3), point(2)), partial_bytes=100))
    assert not scaling.is_under_way(memory), "no slot holds nine"
    assert memory.scaling is not None
    assert memory.scaling.record.planned == 2
    assert scaling.is_under_way(scaling.follow(scene(record(point(3), point(2)))))


def test_a_profile_that_is_done_is_not_begun_again() -> None:
    memory = scaling.follow(scene(record(point(3), point(2), done=True)))
    assert not scaling.is_under_way(memory)


def test_another_persons_profile_is_one_of_its_own() -> None:
    memory = scaling.follow(scene(record(point(3), point(2), wish="old", done=True)))
    assert scaling.is_under_way(memory)


def test_a_profile_ends_when_the_slots_are_others() -> None:
    at = scene(None)
    memory = scaling.follow(at)
    fewer = replace(at, memory=memory, ask=replace(at.ask, stay=(A, B)))
    memory = scaling.follow(fewer)
    assert memory.scaling is not None
    assert memory.scaling.record.done
    assert "changed" in memory.scaling.record.reason


def test_more_slots_than_logical_workers_are_no_point_of_the_curve() -> None:
    at = scene(None)
    spec = at.view.spec
    assert spec is not None
    few = msgspec.structs.replace(spec, logical_workers=2)
    view = replace(at.view, spec=few)
    base = commit(1, {A: [0], B: [1], C: []})
    at = replace(at, view=view, base=base)
    memory = scaling.follow(at)
    assert memory.scaling is not None
    assert len(memory.scaling.points) == 2


def test_a_profile_is_kept_whole_or_not_at_all_and_read_by_whom_it_is_of(tmp_path: Path) -> None:
    kept = record(point(3), point(2), done=True)
    assert keeping.read_profile(tmp_path) is None
    keeping.keep_profile(tmp_path, kept)
    assert keeping.read_profile(tmp_path) == kept
    assert [each.name for each in tmp_path.iterdir()] == [keeping.PROFILE]
    assert keeping.is_of(kept, job_spec(logical_workers=9))
    assert not keeping.is_of(kept, job_spec(logical_workers=8))
    assert not keeping.is_of(kept, job_spec(logical_workers=9, mixes=True))
    (tmp_path / keeping.PROFILE).write_text("{")
    assert keeping.read_profile(tmp_path) is None


def test_a_profile_that_is_withdrawn_ends_and_says_so() -> None:
    at = scene(None)
    asked = at.ask.profile
    memory = scaling.follow(replace(at, memory=measured(at), ask=replace(at.ask, profile=None)))
    assert memory.scaling is not None
    assert not scaling.is_under_way(memory), "who joins or moves waits no longer"
    ended = memory.scaling.record
    assert (len(ended.points), ended.reason) == (1, "it was withdrawn")
    assert scaling.follow(replace(at, memory=memory, ask=replace(at.ask, profile=None))) == memory
    assert asked is not None
    again = replace(at, memory=memory, ask=replace(at.ask, profile=("w2", asked[1])))
    assert scaling.is_under_way(scaling.follow(again))


def test_a_size_is_measured_for_no_more_steps_than_anybody_may_ask_for() -> None:
    at = scene(None)
    many = ("w1", Wish(kind="profile", target="100000", by="ann"))
    at = replace(at, ask=replace(at.ask, profile=many))
    assert at.view.progress is not None
    far = msgspec.structs.replace(at.view.progress, position=MOST_PROFILE_STEPS)
    for progress, points in ((at.view.progress, 0), (far, 1)):
        memory = measured(replace(at, view=replace(at.view, progress=progress)))
        assert memory.scaling is not None
        assert len(memory.scaling.record.points) == points


def test_few_slots_are_of_different_devices() -> None:
    names = ("cpu:0/0", "cpu:0/1", "cpu:1/0", "cpu:1/1")
    known = {w: SlotRecord(name, "cpu", w) for name in names for w in [slot_of(name)]}
    points = scaling.sizes(tuple(known), known)
    assert [[each.slot for each in point] for point in points] == [
        ["cpu:0/0", "cpu:0/1", "cpu:1/0", "cpu:1/1"],
        ["cpu:0/0", "cpu:0/1", "cpu:1/0"],
        ["cpu:0/0", "cpu:1/0"],
        ["cpu:0/0"],
    ]


def slot_of(name: str) -> WorkerId:
    return WorkerId("a", "a-boot-1", name, 1)
