"""What `plan` says of a job: shares, waste, the plan before, and the plans it is not."""

import msgspec
import pytest

from easyscale.agent.balance.explain import of_job
from easyscale.balance import FormerPlan, SlowSlot, SpeedRecord
from easyscale.errors import UsageError
from easyscale.model import Commit, Mode, NodeRecord, Occasion, decode
from easyscale.plan_facts import PlanFacts
from tests.support.views import KEYS, Job, commit, job_spec, number, worker

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
    plan = explained(running(0.1, 0.1, 0.4, made=equal))
    best = plan.alternatives[1]
    assert best.name == "best of these slots"
    assert best.per_slot == (4, 4, 1)
    assert plan.slower_since == "c/cpu:0"


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
