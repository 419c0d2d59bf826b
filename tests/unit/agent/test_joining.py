"""Who waits joins where that helps: by number at once, by speed as any other move of ranks."""

from dataclasses import replace

import pytest

from easyscale.agent import changes, drafts
from easyscale.agent.balance import places, profile, trials
from easyscale.agent.changes import Change
from easyscale.agent.memory import Memory, Slowness
from easyscale.agent.settings import Balance
from easyscale.model import Occasion
from tests.support.speeds import Race, between, steady
from tests.support.views import Job, commit, job_spec, launch_settings, worker

A, A1, B = worker("a"), worker("a/1"), worker("b")
BALANCE = Balance()
simulated = pytest.mark.timeout(90)


def proposed(slow_s: float | None, well_s: float | None = 0.1, *, ranks: int = 2) -> Change:
    """Two slots of node a share the ranks; a slot of node b waits; both have settled."""
    half = ranks // 2
    job = Job(job_spec(logical_workers=ranks)).leads()
    job.node("a", ("in_use", slow_s) if slow_s else "in_use", ("in_use", well_s or 0.0))
    job.committed(commit(1, {A: range(half), A1: range(half, ranks)})).node("b", "standby")
    view = job.view()
    assert view.base is not None
    found = Change(None, "", Memory(entered=view.base.generation))
    for now in (0.0, 5.0):
        found = changes.propose(view, found.memory, now, settings=launch_settings())
    return found


def test_a_standby_takes_the_ranks_of_a_straggler_which_stays_a_member() -> None:
    plan = proposed(0.4).plan
    assert plan is not None
    held = {each.worker: len(each.ranks) for each in plan.assignments}
    assert held == {A: 0, A1: 1, B: 1}
    assert plan.occasion is Occasion.REBALANCE, "it is tried, and taken back if it does not help"
    assert plan.reason == "cpu 2.5 to 10/s: a 1 → 0, b 0 → 1 a slot"


@pytest.mark.parametrize("slow_s", [0.1, 0.101, 0.11, 0.118])
def test_no_healthy_worker_makes_room_for_a_standby_that_was_never_measured(slow_s: float) -> None:
    found = proposed(slow_s)
    assert found.plan is None
    assert "stays standby" in found.reason


def test_more_slots_for_more_ranks_join_at_once_whatever_was_measured() -> None:
    plan = proposed(0.101, ranks=6).plan
    assert plan is not None
    assert plan.occasion is Occasion.NONE
    assert {each.worker: len(each.ranks) for each in plan.assignments} == {A: 2, A1: 2, B: 2}


@simulated
def test_a_straggler_beside_a_standby_costs_one_change_and_no_process() -> None:
    race = Race([between(0.1, 0.4, 20, 10**9), steady(0.1), steady(0.1)], 2, on_b=1)
    race.run(20)
    workers = race.workers
    assert race.counts == (1, 1, 0)
    race.until((0, 1, 1), within=15)
    race.run(130)
    assert race.counts == (0, 1, 1)
    assert race.moves <= 3, "to the standby, and perhaps a look at the slow one"
    assert race.workers == workers, "nobody was started anew"
    assert {each.facts["slot"] for each in race.told("slow")} == {"cpu:0"}


@simulated
def test_noise_brings_no_standby_in() -> None:
    race = Race([steady(0.1)] * 3, 2, noise=0.2, on_b=1, seed=1)
    race.run(150)
    assert set(race.maps) == {(1, 1, 0)}


@simulated
def test_a_slot_that_is_spare_gets_a_worker_when_another_one_of_its_node_is_slow() -> None:
    race = Race([between(0.1, 0.4, 20, 10**9), steady(0.1), steady(0.1)], 2)
    race.run(20)
    assert {each.slot for each in race.workers} == {"cpu:0", "cpu:1"}
    race.until((0, 1, 1), within=60)
    race.run(60)
    assert race.counts == (0, 1, 1)
    assert {each.spawn for each in race.workers} == {1}, "nobody was started anew"


@simulated
@pytest.mark.parametrize("on_b", [0, 1])
def test_the_only_slot_of_a_job_is_relieved_by_one_that_was_never_measured(on_b: int) -> None:
    race = Race([between(0.1, 0.5, 20, 10**9), steady(0.1)], 1, on_b=on_b)
    race.until((0, 1), within=90)
    race.run(60)
    assert race.counts == (0, 1)
    assert race.moves == 1


def slow_at_a() -> tuple[Job, Memory]:
    """A job whose slot at `a` is known to be slow, and what is remembered of it at step 5."""
    slow = Slowness(0, 0, 0.4, 4.0, "its kind", is_told=True)
    job = Job(job_spec(logical_workers=4)).leads()
    job.node("a", ("in_use", 0.4)).node("b", ("in_use", 0.1))
    return job, places.remember(job.view(), Memory(position=5, slow={A: slow}), BALANCE)


def test_whoever_is_started_on_a_slow_slot_is_believed_to_be_slow_until_it_measures() -> None:
    job, was = slow_at_a()
    again = worker("a", spawn=2)
    job.node("a", "standby", spawn=2)
    memory = places.remember(job.view(), replace(was, slow={}), BALANCE)
    slots = drafts.slots_of(job.view()).values()
    assert profile.micro_steps(slots, memory.doubts) == {again: 400_000_000, B: 100_000_000}
    assert profile.micro_steps(slots)[again] == 100_000_000, "else as fast as its kind"
    job.node("a", ("in_use", 0.1), spawn=2)
    memory = trials.judge(
        job.view(), places.remember(job.view(), memory, BALANCE), launch_settings()
    )
    assert (memory.doubts, memory.slow_places) == ({}, {})


def test_what_was_slow_long_ago_is_forgotten() -> None:
    job, was = slow_at_a()
    job.node("a", "standby", spawn=2)
    later = 5 + places.FORGOTTEN_AFTER * BALANCE.pays_within
    assert places.remember(job.view(), replace(was, slow={}, position=later), BALANCE).doubts == {}
