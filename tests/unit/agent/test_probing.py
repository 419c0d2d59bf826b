"""Emptied slots are looked at again: soon when they have stalled, seldom when they stay slow."""

from dataclasses import replace

import pytest

from easyscale.agent.balance import probing
from easyscale.agent.balance.scene import Scene
from easyscale.agent.memory import Memory, Probe, Slowness
from easyscale.agent.wants import wanted
from easyscale.balance import Trial
from tests.support.speeds import Race, between, steady
from tests.support.views import Job, commit, job_spec, launch_settings, number, worker

pytestmark = pytest.mark.timeout(90)
FOR_EVER = 10**9


@pytest.mark.parametrize(("times", "until"), [(100.0, 46), (30.0, 60), (10.0, 80)])
def test_a_slot_that_has_stalled_gets_its_ranks_back_soon(times: float, until: int) -> None:
    race = Race([steady(0.05), steady(0.05), between(0.05, 0.05 * times, 40, until)], 12)
    race.run(40)
    race.until((6, 6, 0), within=10)
    race.until((4, 4, 4), within=150)
    race.run(50)
    assert race.counts == (4, 4, 4)


def test_a_look_at_a_slot_that_is_hopeless_is_over_when_its_steps_last() -> None:
    race = Race([steady(0.05), steady(0.05), between(0.05, 2.0, 40, FOR_EVER)], 12)
    race.run(40)
    race.until((6, 6, 0), within=10)
    start = race.step
    race.until_shares("6+5+1", within=70)
    race.until((6, 6, 0), within=4)
    race.run(start + 300 - race.step)
    looked = [each for each in race.told("rebalanced") if "to see how fast" in each.reason]
    assert len(looked) == 1, "and so seldom from then on that it costs its share"
    assert sum(took_s > 1.0 for took_s in race.times[start:]) <= 4


def test_a_slot_that_would_bring_nothing_is_not_looked_at() -> None:
    race = Race([between(0.1, 1.0, 20, 60), steady(0.1), steady(0.1)], 2, on_b=1)
    race.run(20)
    race.until((0, 1, 1), within=15)
    race.run(200)
    assert set(race.maps[-190:]) == {(0, 1, 1)}


def test_it_is_looked_at_once_it_is_needed_again() -> None:
    slots = [between(0.1, 1.0, 20, 60), steady(0.1), between(0.1, 1.0, 150, FOR_EVER)]
    race = Race(slots, 2, on_b=1)
    race.run(20)
    race.until((0, 1, 1), within=15)
    race.run(150 - race.step)
    race.until((1, 1, 0), within=60)


def test_who_waits_on_an_unknown_machine_is_looked_at_once_and_used_if_it_is_faster() -> None:
    race = Race([steady(0.2), steady(0.2), steady(0.02), steady(0.02)], 2, on_b=2)
    race.until((0, 0, 2, 0), within=250)
    race.until((0, 0, 1, 1), within=500)


def test_one_that_is_no_faster_is_looked_at_once() -> None:
    race = Race([steady(0.2), steady(0.2), steady(0.2), steady(0.2)], 2, on_b=2)
    race.run(700)
    looked = [each for each in race.told("joined") if "to see how fast" in each.reason]
    assert {each.reason for each in looked} == {looked[0].reason}
    assert race.moves <= 2


def test_a_map_that_is_on_trial_is_judged_before_anybody_is_looked_at() -> None:
    a, b, c = map(worker, "abc")
    job = Job(job_spec(logical_workers=6)).leads()
    for name, taken_s in (("a", 0.1), ("b", 0.1), ("c", 0.2)):
        job.node(name, ("in_use", taken_s))
    made = commit(2, {a: range(3), b: range(3, 6), c: []})
    view = job.committed(made).view()
    memory = Memory(
        position=500,
        slow={c: Slowness(400, 400, micro_step_s=0.2, ratio=2.0, usual="its kind", is_told=True)},
        probes={c: Probe(since=400)},
    )
    settings = launch_settings()
    scene = Scene(view, made, wanted(view, made, settings), memory, settings, 0.0)
    looks = probing.probe(scene)
    assert looks is not None
    assert "c/cpu:0 is given rank" in looks.reason
    trial = Trial(
        generation=number(2), former=(), before_s=0.4, beside_s=0.0, promised_s=0.3, due=510
    )
    assert probing.probe(replace(scene, memory=replace(memory, trial=trial))) is None
