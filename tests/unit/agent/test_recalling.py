"""What a leader knows from records: the plan before; when it is new, all that was found out."""

from collections.abc import Sequence
from dataclasses import replace

import msgspec
import pytest

from easyscale.agent import leader
from easyscale.agent.balance.recalling import recall
from easyscale.agent.balance.trials import held_in
from easyscale.agent.memory import Doubt, Memory
from easyscale.agent.verdicts import Standpoint
from easyscale.balance import (
    DoubtedSlot,
    FormerPlan,
    SlowSlot,
    SpeedRecord,
    Swing,
    SwingingSlot,
    Trial,
    TriedPlan,
)
from easyscale.model import Assignment, GenerationNumber, LogicalRank, Mode, Occasion, Plan
from easyscale.rendezvous.agreement import CommitPlan, JobView
from easyscale.rendezvous.memory import MemoryStore
from easyscale.rendezvous.store import Compare, Operation, TxnResult
from tests.support.speeds import Race, Slot, between, steady
from tests.support.views import KEYS, Job, commit, launch_settings, number, worker

simulated = pytest.mark.timeout(90)
A, B = worker("a"), worker("b")
SWING = Swing(times=1, slow_s=0.4, until=900, since=7)
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
        swings=(SwingingSlot(worker=B, swing=SWING, wait_steps=50),),
    )
    memory = recall(changed().put(KEYS.speed, record).view(), Memory())
    assert memory.tried == (TRIED,)
    assert memory.swings == {B: SWING}
    assert memory.former == former


def test_a_new_leader_knows_who_is_slow_who_is_doubted_and_which_map_is_on_trial() -> None:
    slow = SlowSlot(
        worker=B, since_step=3, micro_step_s=0.4, ratio=4.0, emptied=False, reason="400 ms"
    )
    gone = msgspec.structs.replace(slow, worker=worker("c"))
    former = (Assignment(A, (LogicalRank(0),)), Assignment(B, (LogicalRank(1),)))
    trial = Trial(
        generation=number(2), former=former, before_s=0.5, beside_s=0.1, promised_s=0.3, due=30
    )
    doubts = (
        DoubtedSlot(worker=A, factor=2.0, reason="slower", micro_step_s=0.1, until=900),
        DoubtedSlot(worker=B, factor=1.3, reason="it waited for data with 4 ranks"),
    )
    record = SpeedRecord(
        generation=number(2),
        planned_at="t",
        planned_at_step=4,
        slow=(slow, gone),
        trial=trial,
        doubts=doubts,
    )
    memory = recall(changed().put(KEYS.speed, record).view(), Memory(position=9))
    assert {w: (s.ratio, s.since_step, s.is_told) for w, s in memory.slow.items()} == {
        B: (4.0, 3, True)
    }
    assert memory.best == {B: 0.1}, "what it is held against where it is the only one of its kind"
    assert memory.trial == trial
    assert memory.doubts == {A: Doubt(2.0, 0.1, 900)}
    other = msgspec.structs.replace(trial, generation=number(1))
    record = msgspec.structs.replace(record, trial=other)
    assert recall(changed().put(KEYS.speed, record).view(), Memory()).trial is None


def led_anew(race: Race) -> None:
    """The store is away for as long as the leader may lead without it; then it leads again."""
    race.world.server.stop()
    race.run(3)
    race.world.advance(1.5)
    race.world.server.start()
    race.world.advance(1.0)
    assert [line for line in race.world.trace if line == "a: leads"][1:], "it led anew"


@simulated
@pytest.mark.parametrize("slow_s", [0.4, 4.0])
def test_a_new_leader_is_no_news_of_slow_slots(slow_s: float) -> None:
    race = Race([steady(0.1), steady(0.1), steady(slow_s)], 9)
    race.run(30)
    led_anew(race)
    race.run(20)
    assert len(race.told("slow")) == 1
    assert race.told("recovered_speed") == []


@simulated
def test_who_leads_anew_while_a_plan_is_open_writes_nothing_it_has_not_read() -> None:
    race = Race([steady(0.1), steady(0.4), steady(0.1)], 9, on_b=1)
    race.run(30)
    world = race.world
    world.nodes["b"].deaf = True
    world.wish("migrate", "a", "cpu:0", target="b")
    world.advance(2.0)
    world.server.stop()
    world.advance(2.0)
    world.server.start()
    world.advance(2.0)
    open_plan = world.nodes["a"].state.view.open_plan
    assert open_plan is not None, "it waits for b"
    slow = world.record(world.keys.speed)["slow"]
    assert [each["worker"][2] for each in slow] == ["cpu:1"]


@simulated
def test_a_new_leader_does_not_call_the_only_slot_of_a_job_well() -> None:
    race = Race([between(0.1, 0.3, 20, 140)], 3)
    race.run(80)
    led_anew(race)
    race.run(40)
    assert race.told("recovered_speed") == []
    race.run(100)
    assert len(race.told("recovered_speed")) == 1


@simulated
def test_a_map_on_trial_is_judged_by_the_next_leader() -> None:
    liar = Slot(lambda _: 0.1, claims=0.5)
    race = Race([liar, steady(0.1), steady(0.1)], 9)
    race.until((5, 2, 2), within=30)
    race.run(3)
    led_anew(race)
    race.until((3, 3, 3), within=25)


@simulated
def test_no_rebalance_stands_in_the_store_without_its_trial(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    race = Race([Slot(lambda _: 0.1, claims=0.5), steady(0.1), steady(0.1)], 9)
    world, transact = race.world, MemoryStore.transact
    seen = dict[GenerationNumber, bool]()

    def look(
        store: MemoryStore,
        compares: Sequence[Compare],
        operations: Sequence[Operation],
        *,
        timeout_s: float,
    ) -> TxnResult:
        result = transact(store, compares, operations, timeout_s=timeout_s)
        view = JobView.of(world.server.contents.view(world.keys.prefix), world.keys)
        if view.newest is not None and view.newest.occasion is Occasion.REBALANCE:
            trial = view.speed.trial if view.speed is not None else None
            is_known = trial is not None and trial.generation == view.newest.generation
            seen.setdefault(view.newest.generation, is_known)
        return result

    monkeypatch.setattr(MemoryStore, "transact", look)
    race.until((5, 2, 2), within=30)
    assert set(seen.values()) == {True}


def test_a_new_leader_puts_a_rebalance_on_trial_that_the_one_before_it_planned() -> None:
    job = Job().leads().node("a", ("in_use", 0.1)).node("b", ("in_use", 0.2))
    job.committed(commit(1, {A: [0, 1], B: [2, 3]})).progress(100)
    tried = msgspec.structs.replace(TRIED, counts=((A, 4),))
    record = SpeedRecord(generation=number(1), planned_at="t", planned_at_step=4, tried=(tried,))
    plan = Plan(
        generation=number(2),
        mode=Mode.BOUNDARY,
        assignments=held_in(commit(2, {A: [0, 1, 2], B: [3]})),
        main=A,
        reason="faster",
        occasion=Occasion.REBALANCE,
        step_s=(0.4, 0.3),
    )
    job.put(KEYS.speed, record).planned(plan, ready=[A, B])

    at = Standpoint(job.view(), 50.0, launch_settings(), KEYS)
    verdict = leader.decide(at, Memory())
    assert isinstance(verdict.decision, CommitPlan)
    job.committed(verdict.decision.commit)
    memory = leader.decide(replace(at, view=job.view()), verdict.memory).memory
    assert memory.trial is not None
    assert memory.trial.generation == number(2)
    assert memory.tried == (tried,)


def test_who_leads_already_believes_its_own_memory() -> None:
    record = SpeedRecord(generation=number(1), planned_at="t", planned_at_step=4, tried=(TRIED,))
    memory = recall(changed().put(KEYS.speed, record).view(), Memory(replaced_by=number(1)))
    assert memory.tried == ()


def test_the_first_plan_has_none_before_it() -> None:
    job = Job().leads().node("a", "in_use").committed(commit(1, [A]))
    assert recall(job.view(), Memory()).former is None
