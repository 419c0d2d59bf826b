"""What `plan` says of a job: shares, waste, the plan before, and the plans it is not."""

from dataclasses import replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from easyscale.agent.balance import doubting
from easyscale.agent.balance.explain import of_job
from easyscale.agent.balance.scene import Scene
from easyscale.agent.memory import Doubt, Memory, Starved
from easyscale.agent.wants import wanted
from easyscale.balance import (
    DoubtedSlot,
    FormerPlan,
    SlowSlot,
    SpeedRecord,
    Swing,
    SwingingSlot,
    TriedPlan,
)
from easyscale.errors import UsageError
from easyscale.model import Commit, Mode, NodeRecord, Occasion, SlotRecord, WorkerId, decode
from easyscale.plan_facts import PlanFacts
from easyscale.rendezvous.view import JobView
from tests.support.speeds import Race, Slot, steady
from tests.support.views import KEYS, Job, commit, job_spec, launch_settings, number, worker

A, B, C = worker("a"), worker("b"), worker("c")


def moved() -> Commit:
    made = commit(2, {A: range(4), B: range(4, 8), C: [8]}, mode=Mode.BOUNDARY)
    return msgspec.structs.replace(
        made, occasion=Occasion.REBALANCE, step_s=(1.2, 0.4), reason="c is slow"
    )


def running(*speeds: float | None, made: Commit | None = None) -> Job:
    job = Job(job_spec(logical_workers=9)).leads()
    for name, speed in zip("abc", speeds, strict=True):
        job.node(name, ("in_use", speed) if speed else "in_use")
    return job.committed(made or moved())


def explained(job: Job) -> PlanFacts:
    return of_job("job", job.view(), measured_s=0.42)


def test_a_plan_is_told_with_its_promise_its_measure_and_its_waste() -> None:
    plan = explained(running(0.1, 0.1, 0.4))
    assert (plan.step_seconds, plan.measured_step_seconds) == (0.4, 0.42)
    assert [len(each.ranks) for each in plan.assignments] == [4, 4, 1]
    assert [each.micro_steps_per_s for each in plan.assignments] == [10.0, 10.0, 2.5]
    assert plan.throughput_per_s == 22.5
    assert plan.capability_per_s == 22.5
    assert plan.waste is not None
    assert plan.waste.share == 0.0
    assert plan.reason == "c is slow"


def test_the_other_plans_say_what_would_cost_more_and_what_would_help() -> None:
    plan = explained(running(0.1, 0.1, 0.4))
    names = [each.name for each in plan.alternatives]
    assert names[0] == "this plan"
    assert names[1:] == ["without c/cpu:0", "3 more cpu", "c/cpu:0 recovers"]
    without = plan.alternatives[1]
    assert without.per_slot == (5, 4)
    assert without.against_now_share == pytest.approx(0.25)
    assert without.reason == "the others hold 8 of 9 in that time"
    assert plan.alternatives[3].per_slot == (3, 3, 3)
    assert plan.occasion == "now that c/cpu:0 is slow"


def test_a_slot_whose_steps_are_noisy_is_no_occasion_until_it_is_called_slow() -> None:
    job = running(0.1, 0.1, 0.15)
    record = decode(job.entries[KEYS.node("c")].value, NodeRecord, source="c")
    noisy = msgspec.structs.replace(record.slots[0], spread=0.2)
    job.put(KEYS.node("c"), msgspec.structs.replace(record, slots=(noisy,)))
    assert explained(job).occasion == ""
    slow = SlowSlot(
        worker=C, since_step=4, micro_step_s=0.15, ratio=1.5, emptied=False, reason="1.5 x"
    )
    speed = SpeedRecord(generation=number(2), planned_at="", planned_at_step=0, slow=(slow,))
    assert explained(job.put(KEYS.speed, speed)).occasion == "now that c/cpu:0 is slow"


def test_a_better_plan_that_was_not_taken_is_named() -> None:
    equal = commit(2, {A: range(3), B: range(3, 6), C: range(6, 9)})
    equal = msgspec.structs.replace(equal, step_s=(0.4, 0.3))
    plan = explained(running(0.1, 0.1, 0.4, made=equal))
    best = plan.alternatives[1]
    assert best.name == "best of these slots"
    assert best.per_slot == (4, 4, 1)
    assert plan.slower_since == "c/cpu:0"


@pytest.mark.parametrize(("slow_s", "since"), [(0.4, None), (0.41, None), (0.44, "c/cpu:0")])
def test_a_slow_slot_that_the_plan_counts_with_is_no_reason_of_a_longer_step(
    slow_s: float, since: str | None
) -> None:
    plan = of_job("job", running(0.1, 0.1, slow_s).view(), measured_s=0.46)
    assert plan.occasion == "now that c/cpu:0 is slow"
    assert plan.slower_since == since


def test_the_plan_before_comes_from_the_record() -> None:
    former = FormerPlan(
        generation=number(1), step_s=1.2, counts={"a/cpu:0": 3, "b/cpu:0": 3, "c/cpu:0": 3}
    )
    record = SpeedRecord(
        generation=number(2), planned_at="2026-10-04T14:07:11.000Z", planned_at_step=40,
        former=former,
    )  # fmt: skip
    plan = explained(running(0.1, 0.1, 0.4).put(KEYS.speed, record))
    assert plan.previous is not None
    assert (plan.previous.generation, plan.previous.step_seconds) == (1, 1.2)
    assert plan.previous.per_slot == (3, 3, 3)
    assert [each.previous_count for each in plan.assignments] == [3, 3, 3]
    assert plan.planned_at_step == 40
    assert len(plan.moved_ranks) == 2


def test_waiting_for_data_is_part_of_what_a_slot_can_do_and_told_apart() -> None:
    job = running(0.1, 0.1, 0.1)
    record = decode(job.entries[KEYS.node("c")].value, NodeRecord, source="c")
    slot = msgspec.structs.replace(record.slots[0], data_wait_s=0.3)
    plan = explained(job.put(KEYS.node("c"), msgspec.structs.replace(record, slots=(slot,))))
    assert [each.data_wait_s for each in plan.assignments] == [None, None, 0.3]
    assert [each.micro_steps_per_s for each in plan.assignments] == [10.0, 10.0, 2.5]
    assert [each.name for each in plan.alternatives][1] == "without c/cpu:0"


def test_a_record_of_another_generation_says_nothing_of_this_one() -> None:
    record = SpeedRecord(generation=number(1), planned_at="x", planned_at_step=4)
    plan = explained(running(0.1, 0.1, 0.4).put(KEYS.speed, record))
    assert (plan.previous, plan.planned_at) == (None, None)


def test_what_is_not_measured_is_not_made_up() -> None:
    fresh = commit(1, {A: range(3), B: range(3, 6), C: range(6, 9)})
    plan = explained(running(None, None, None, made=fresh))
    assert plan.step_seconds is None
    assert plan.waste is None
    assert plan.alternatives == ()
    assert [each.micro_steps_per_s for each in plan.assignments] == [None] * 3


def test_a_job_without_a_plan_is_said() -> None:
    with pytest.raises(UsageError, match="no plan yet"):
        of_job("job", Job().view(), measured_s=None)


# --- as the rebalancer sees it -----------------------------------------------------------------


def equal_shares() -> Commit:
    return commit(2, {A: range(3), B: range(3, 6), C: range(6, 9)})


def speeds(**more: object) -> SpeedRecord:
    record = SpeedRecord(generation=number(2), planned_at="", planned_at_step=0)
    return msgspec.structs.replace(record, **more)


def tried(counts: dict[WorkerId, int], *, until: int = 900, c_s: float = 0.4) -> TriedPlan:
    return TriedPlan(
        counts=tuple(counts.items()),
        micro_steps={str(A): 0.1, str(B): 0.1, str(C): c_s},
        promised_s=0.4,
        measured_s=1.4,
        reason="back to 3+3+3",
        until=until,
    )


def changed_slot(job: Job, node: str, **changes: object) -> Job:
    record = decode(job.entries[KEYS.node(node)].value, NodeRecord, source=node)
    slot: SlotRecord = msgspec.structs.replace(record.slots[0], **changes)
    return job.put(KEYS.node(node), msgspec.structs.replace(record, slots=(slot,)))


def left_out(plan: PlanFacts) -> list[tuple[str, str]]:
    return [(f"{each.node}/{each.slot}", each.reason) for each in plan.left_out]


def test_a_slot_of_another_kind_is_named_and_counted_in_nothing() -> None:
    alone = explained(running(0.1, 0.1, 0.4))
    job = running(0.1, 0.1, 0.4).node("d", ("standby", 0.02), kind="gpu")
    plan = explained(job)
    assert left_out(plan) == [("d/cpu:0", "of kind gpu, the job is of kind cpu")]
    assert [each.node for each in plan.assignments] == ["a", "b", "c"]
    assert (plan.capability_per_s, plan.waste) == (alone.capability_per_s, alone.waste)
    assert plan.alternatives == alone.alternatives


def test_a_job_that_takes_any_processor_counts_every_slot() -> None:
    job = Job(job_spec(logical_workers=9, mixes=True)).leads()
    for name in "abc":
        job.node(name, ("in_use", 0.1))
    plan = explained(job.node("d", ("standby", 0.1), kind="cpu (new)").committed(equal_shares()))
    assert plan.left_out == ()
    assert plan.capability_per_s == 40.0


def test_slots_beyond_the_most_nodes_are_named_and_counted_in_nothing() -> None:
    job = running(0.1, 0.1, 0.1, made=equal_shares()).node("d", ("standby", 0.1))
    assert [each.node for each in explained(job).assignments] == ["a", "b", "c", "d"]
    plan = explained(job.put(KEYS.speed, speeds(max_nodes=3)))
    assert left_out(plan) == [("d/cpu:0", "the job takes at most 3 nodes")]
    assert plan.capability_per_s == 30.0


def test_slots_out_of_reach_of_the_job_are_named_and_counted_in_nothing() -> None:
    job = running(0.1, 0.1, 0.1, made=equal_shares()).node("d", "standby", cut=("b",))
    assert left_out(explained(job)) == [("d/cpu:0", "it and b do not reach each other")]


def test_slots_that_start_or_end_are_named_and_those_that_are_gone_are_none() -> None:
    job = running(0.1, 0.1, 0.1, made=equal_shares())
    job.node("d", "starting").node("e", "gone").node("f", "standby").gone(worker("f"))
    job.node("g", "standby").wish("drain", "g")
    assert left_out(explained(job)) == [
        ("d/cpu:0", "starting"),
        ("f/cpu:0", "its worker has ended"),
        ("g/cpu:0", "shall hold nothing"),
    ]


def test_a_slot_that_leaves_counts_as_long_as_it_computes_and_in_no_other_plan() -> None:
    plan = explained(running(0.1, 0.1, 0.4).wish("drain", "b"))
    assert left_out(plan) == [("b/cpu:0", "draining")]
    assert plan.capability_per_s == 22.5
    assert [sum(each.per_slot) for each in plan.alternatives] == [9] * len(plan.alternatives)
    without = next(each for each in plan.alternatives if each.name == "without c/cpu:0")
    assert without.per_slot == (9,), "of those that stay, only a is left"


def test_no_plan_gives_a_slot_more_than_its_memory_holds() -> None:
    job = running(0.1, 0.1, 0.4, made=equal_shares())
    for node in "abc":
        changed_slot(job, node, free_bytes=0, partial_bytes=100)
    plan = explained(job)
    assert [each.most_ranks for each in plan.assignments] == [3, 3, 3]
    assert "best of these slots" not in [each.name for each in plan.alternatives]
    recovers = next(each for each in plan.alternatives if "recovers" in each.name)
    assert recovers.per_slot == (3, 3, 3)
    loose = explained(running(0.1, 0.1, 0.4, made=equal_shares()))
    assert loose.alternatives[1].per_slot == (4, 4, 1)


def test_a_plan_that_broke_its_promise_says_so() -> None:
    job = running(0.1, 0.1, 0.4, made=equal_shares())
    plan = explained(job.put(KEYS.speed, speeds(tried=(tried({A: 4, B: 4, C: 1}),))))
    assert plan.alternatives[1].per_slot == (4, 4, 1)
    assert plan.alternatives[1].reason == "was measured slower than it promised"


@pytest.mark.parametrize(
    ("waits_for", "reason"),
    [
        (50, "c/cpu:0 swings: it gets ranks back when it has been well for 50 steps"),
        (0, "not yet worth a change, beyond noise"),
    ],
)
def test_a_slot_that_swings_and_waits_is_why_the_better_plan_is_not_taken(
    waits_for: int, reason: str
) -> None:
    swing = Swing(times=1, slow_s=0.4, until=900)
    swinging = SwingingSlot(worker=C, swing=swing, wait_steps=waits_for)
    plan = explained(running(0.1, 0.1, 0.1).put(KEYS.speed, speeds(swings=(swinging,))))
    best = plan.alternatives[1]
    assert (best.name, best.per_slot) == ("best of these slots", (3, 3, 3))
    assert best.reason == reason


@pytest.mark.parametrize(
    "forgiven", [tried({A: 4, B: 4, C: 1}, until=-1), tried({A: 4, B: 4, C: 1}, c_s=0.9)]
)
def test_what_was_tried_long_ago_or_at_other_speeds_is_not_held_against_a_plan(
    forgiven: TriedPlan,
) -> None:
    job = running(0.1, 0.1, 0.4, made=equal_shares())
    plan = explained(job.put(KEYS.speed, speeds(tried=(forgiven,))))
    assert plan.alternatives[1].reason == "not yet worth a change, beyond noise"


def test_a_doubted_slot_counts_as_the_leader_believes_it() -> None:
    job = running(0.1, 0.1, 0.1, made=equal_shares())
    doubt = DoubtedSlot(worker=C, factor=3.0, reason="it waited for data with 3 ranks")
    undone = tried({A: 2, B: 2, C: 5}, c_s=0.1)
    plan = explained(job.put(KEYS.speed, speeds(doubts=(doubt,), tried=(undone,))))
    c = plan.assignments[2]
    assert (c.doubt_factor, c.doubt) == (3.0, doubt.reason)
    assert c.busy_s == pytest.approx(0.9)
    best = plan.alternatives[1]
    assert (best.name, best.per_slot) == ("best of these slots", (4, 4, 1))


def test_what_was_undone_is_shown_as_it_is_believed_where_nothing_is_better() -> None:
    job = running(0.1, 0.1, 0.1, made=equal_shares())
    doubts = (DoubtedSlot(worker=C, factor=1.3, reason="r"),)
    undone = tried({A: 2, B: 2, C: 5}, c_s=0.1)
    plan = explained(job.put(KEYS.speed, speeds(doubts=doubts, tried=(undone,))))
    row = next(each for each in plan.alternatives if each.name == "undone before")
    assert row.per_slot == (5, 2, 2)
    assert row.busy_s == pytest.approx(5 * 0.13)
    assert row.reason == "was measured slower than it promised"


def test_while_a_plan_measures_something_no_better_one_is_taken() -> None:
    measuring = msgspec.structs.replace(commit(2, {A: range(9), B: (), C: ()}))
    profiled = msgspec.structs.replace(measuring, occasion=Occasion.PROFILE)
    plan = explained(running(0.1, 0.1, 0.1, made=profiled))
    assert plan.alternatives[1].reason == "a profile measures the slots of this plan"


def test_a_slot_that_waits_to_join_is_named_where_it_would_help() -> None:
    equal = commit(2, {A: range(4), B: range(4, 8), C: range(8, 12)})
    job = Job(job_spec(logical_workers=12)).leads()
    for name in "abc":
        job.node(name, ("in_use", 0.1))
    best = explained(job.committed(equal).node("d", ("standby", 0.1))).alternatives[1]
    assert best.per_slot == (3, 3, 3, 3)
    assert best.reason == "with d/cpu:0, once that earns the pause of a join"


@given(
    st.tuples(*[st.sampled_from([0.1, 0.15, 0.4])] * 3),
    st.tuples(*[st.sampled_from([None, 0, 200])] * 3),
    st.dictionaries(st.sampled_from([A, B, C]), st.sampled_from([1.5, 3.0])),
)
def test_the_best_of_these_slots_is_what_the_rebalancer_would_want(
    paces: tuple[float, ...], free: tuple[int | None, ...], doubted: dict[WorkerId, float]
) -> None:
    job = running(*paces, made=equal_shares()).progress(3)
    for node, free_bytes in zip("abc", free, strict=True):
        changed_slot(job, node, free_bytes=free_bytes, partial_bytes=100)
    view, settings = job.view(), launch_settings(logical_workers=9)
    assert view.base is not None
    memory = Memory(doubts={w: Doubt(factor, 0.1, 900) for w, factor in doubted.items()})
    scene = Scene(view, view.base, wanted(view, view.base, settings), memory, settings, 0.0)
    record = speeds(doubts=doubting.told(memory, ()), max_nodes=settings.max_nodes)
    present, *others = explained(job.put(KEYS.speed, record)).alternatives
    best = [each for each in others if each.name == "best of these slots"]
    assert present.busy_s == pytest.approx(scene.step_now / 1e9)
    assert [each.busy_s for each in best] == pytest.approx(
        [scene.best.step / 1e9] if scene.best.step < scene.step_now else []
    )


# --- what the leader writes down for it --------------------------------------------------------


def test_a_doubt_is_written_with_its_cause_and_anew_only_when_it_clearly_changed() -> None:
    memory = Memory(
        doubts={A: Doubt(2.0, 0.1, 900), B: Doubt(1.5, 0.1, 900), C: Doubt(1.0, 0.1, 900)},
        starved={B: Starved(rank_s=0.3, wait_s=0.2, ranks=3, until=900)},
    )
    told = doubting.told(memory, ())
    assert [(each.worker, each.factor) for each in told] == [(A, 2.0), (B, 1.5)]
    assert told[1].reason == "it waited for data with 3 ranks"
    assert {w: doubt.factor for w, doubt in doubting.believed(told).items()} == {A: 2.0, B: 1.5}
    for factor, written in ((2.1, 2.0), (2.5, 2.5)):
        again = replace(memory, doubts={A: Doubt(factor, 0.1, 900)})
        assert [each.factor for each in doubting.told(again, told)] == [written]


def test_the_record_of_a_leader_tells_what_it_no_longer_believes() -> None:
    """A slot claims to be twice as fast as it is; then the map that trusted it is taken back."""
    race = Race([steady(0.1), steady(0.1), Slot(lambda _: 0.1, claims=0.5)], 12)
    race.run(60)
    world = race.world
    view = JobView.of(world.server.contents.view(world.keys.prefix), world.keys)
    plan = of_job("job", view, measured_s=None)
    assert [each.doubt_factor is not None for each in plan.assignments] == [False, False, True]
    undone = next(each for each in plan.alternatives if each.name == "undone before")
    assert undone.per_slot == (6, 3, 3)
    assert undone.against_now_share == pytest.approx(0.5, abs=0.05)
