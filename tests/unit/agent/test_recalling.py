"""What a leader knows from records: the plan before, and, when it is new, what was tried."""

import msgspec

from easyscale.agent.balance.recalling import recall
from easyscale.agent.memory import Memory, Swing
from easyscale.balance import FormerPlan, SpeedRecord, SwingingSlot, TriedPlan
from easyscale.model import Mode
from tests.support.views import KEYS, Job, commit, number, worker

A, B = worker("a"), worker("b")
TRIED = TriedPlan(
    counts=((A, 3), (B, 1)),
    micro_steps={str(A): 0.1},
    promised_s=0.3,
    measured_s=0.5,
    reason="back to 2+2",
    until=900,
)


def changed() -> Job:
    job = Job().leads().node("a", "in_use").node("b", "in_use")
    job.committed(commit(1, {A: [0, 1], B: [2, 3]}))
    after = commit(2, {A: [0, 1, 2], B: [3]}, mode=Mode.BOUNDARY)
    return job.committed(msgspec.structs.replace(after, step_s=(0.4, 0.3)))


def test_the_plan_before_is_kept_with_what_its_step_took() -> None:
    memory = recall(changed().view(), Memory(replaced_by=number(1)))
    assert memory.former == FormerPlan(
        generation=number(1), step_s=0.4, counts={"a/cpu:0": 2, "b/cpu:0": 2}
    )
    assert memory.replaced_by == number(2)


def test_a_new_leader_knows_who_swings_what_was_tried_and_the_plan_before() -> None:
    former = FormerPlan(generation=number(1), step_s=0.4, counts={"a/cpu:0": 2})
    record = SpeedRecord(
        generation=number(2),
        planned_at="t",
        planned_at_step=4,
        former=former,
        tried=(TRIED,),
        swings=(SwingingSlot(worker=B, times=1, slow_s=0.4, until=900, since=7, wait_steps=50),),
    )
    memory = recall(changed().put(KEYS.speed, record).view(), Memory())
    assert memory.tried == (TRIED,)
    assert memory.swings == {B: Swing(times=1, slow_s=0.4, until=900, since=7)}
    assert memory.former == former


def test_who_leads_already_believes_its_own_memory() -> None:
    record = SpeedRecord(generation=number(1), planned_at="t", planned_at_step=4, tried=(TRIED,))
    memory = recall(changed().put(KEYS.speed, record).view(), Memory(replaced_by=number(1)))
    assert memory.tried == ()


def test_the_first_plan_has_none_before_it() -> None:
    job = Job().leads().node("a", "in_use").committed(commit(1, [A]))
    assert recall(job.view(), Memory()).former is None
