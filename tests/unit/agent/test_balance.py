"""The whole balancer against slots that are noisy, drift, lie, fail and recover, step by step."""

from math import sin
from random import Random

import pytest

from easyscale.agent.balance.planner import Place, plan
from easyscale.agent.settings import Balance
from easyscale.model import WorkerId
from tests.support.speeds import Race, Slot, between, steady

#: Each plays hundreds of steps of a whole agent.
pytestmark = pytest.mark.timeout(90)
#: Of a trial and of what it takes to notice and to plan.
WINDOW = 20 + 15


def best_step(speeds: list[float], n: int) -> float:
    places = [Place(WorkerId("a", "i", str(i), 0), int(t * 1e9)) for i, t in enumerate(speeds)]
    return plan(places, logical_workers=n).step / 1e9


@pytest.mark.parametrize("seed", range(3))
def test_noise_alone_moves_nothing(seed: int) -> None:
    race = Race([steady(0.1) for _ in range(3)], 9, noise=0.1, seed=seed)
    race.run(200)
    assert set(race.maps) == {(3, 3, 3)}
    assert race.told("slow") == []


def test_a_slow_slot_loses_ranks_within_a_few_steps_and_gets_them_back() -> None:
    race = Race([steady(0.1), steady(0.1), between(0.1, 0.4, 30, 80)], 9)
    race.run(30)
    assert race.until((4, 4, 1), within=10) > 0
    race.run(80 - race.step)
    assert race.until((3, 3, 3), within=14) > 0
    race.run(60)
    assert race.moves == 2
    assert len(race.told("slow")) == 1
    assert "× its kind" in race.told("slow")[0].reason  # noqa: RUF001
    assert len(race.told("recovered_speed")) == 1
    assert [each.facts["step_s_after"] for each in race.told("rebalanced")] == pytest.approx(
        [0.4, 0.3], rel=0.1
    )


def test_a_hopeless_slot_is_emptied_reported_looked_at_again_and_used_when_well() -> None:
    race = Race([steady(0.1), steady(0.1), between(0.1, 1.0, 30, 100)], 8)
    race.run(30)
    race.until((4, 4, 0), within=15)
    race.run(100 - race.step)
    assert race.told("slow")[-1].facts["emptied"] is True
    assert race.counts[2] == 0
    race.until_shares("3+3+2", within=150)
    race.run(10)
    assert len(race.told("slow")) == 1, "also when it was looked at in vain"
    assert len(race.told("recovered_speed")) == 1


def test_slots_that_are_the_most_of_their_kind_are_reported_and_used_when_well_too() -> None:
    slow = between(0.1, 1.0, 30, 60)
    race = Race([steady(0.1), slow, slow], 8)
    race.run(30)
    race.until((8, 0, 0), within=25)
    race.run(15)
    assert {each.facts["slot"] for each in race.told("slow")} == {"cpu:1", "cpu:2"}
    race.until_shares("3+3+2", within=250)


@pytest.mark.parametrize("lasts", [25, 40, 100])
def test_a_map_is_acquitted_when_steps_are_as_long_without_it(lasts: int) -> None:
    race = Race([steady(0.1), steady(0.1), between(0.1, 0.4, 30, 10**9)], 9)
    race.run(30)
    race.until((4, 4, 1), within=15)
    usual_s, race.overhead_s = race.overhead_s, 1.0
    race.run(lasts)
    race.overhead_s = usual_s
    race.run(60)
    assert race.counts == (4, 4, 1)


def test_looking_at_a_hopeless_slot_costs_little_and_ever_less() -> None:
    hopeless = between(0.1, 0.7, 20, 10**9)
    race = Race([steady(0.1), steady(0.1), hopeless], 8, balance=Balance(probe_share=0.2))
    race.run(260)
    looks = [each.step or 0 for each in race.told("rebalanced") if "to see how fast" in each.reason]
    assert 2 <= len(looks) <= 3
    assert looks[1] - looks[0] > 1.5 * (looks[0] - 20)
    assert race.mean_s(240) < 1.15 * (0.4 + race.overhead_s)


def test_a_slot_that_claims_to_be_twice_as_fast_is_found_out_within_one_window() -> None:
    liar = Slot(lambda _: 0.1, claims=0.5)
    race = Race([steady(0.1), steady(0.1), liar], 12)
    race.run(200)
    fair = (4, 4, 4)
    fooled = [i for i, counts in enumerate(race.maps) if counts != fair]
    assert fooled, "it was believed at first"
    assert len(fooled) <= WINDOW
    assert race.maps[-1] == fair
    assert race.moves <= 2, "not tried again"
    assert any("slower than before" in each.reason for each in race.told("rebalanced"))


def test_a_slot_that_hides_its_time_and_gains_nothing_by_it_moves_no_rank() -> None:
    """It cannot be told from work beside the micro-steps, and is not looked for."""
    hiding = Race([steady(0.1), steady(0.1), Slot(lambda _: 0.2, claims=0.5)], 9)
    beside = Race([steady(0.1)] * 3, 9, overhead_s=0.31)
    for race in (hiding, beside):
        race.run(80)
        assert set(race.maps) == {(3, 3, 3)}
        assert race.mean_s(40) == pytest.approx(0.61, rel=0.03)


def test_a_drift_is_followed_without_going_to_and_fro() -> None:
    race = Race([steady(0.1), steady(0.1), Slot(lambda step: 0.1 + 0.0008 * step)], 16)
    race.run(265)
    assert race.moves <= 6
    assert race.mean_s(20) < 1.1 * best_step([0.1, 0.1, 0.3], 16)
    shares = [counts[2] for counts in race.maps]
    assert shares == sorted(shares, reverse=True), "each move goes the same way"


def test_a_slot_that_swings_faster_than_it_can_be_followed_does_not_make_ranks_swing() -> None:
    race = Race([steady(0.1), steady(0.1), Slot(lambda step: 0.1 if step // 2 % 2 else 0.16)], 9)
    race.run(150)
    assert race.moves <= 4


@pytest.mark.parametrize("seed", range(4))
def test_whatever_the_speeds_the_map_settles_near_the_optimum(seed: int) -> None:
    random = Random(seed)
    speeds = [random.choice((0.05, 0.1, 0.2, 0.35)) for _ in range(random.randint(2, 5))]
    n = random.randint(len(speeds), 4 * len(speeds))
    race = Race([steady(each) for each in speeds], n, noise=0.03, seed=seed)
    race.run(120)
    assert race.mean_s(40) <= 1.1 * best_step(speeds, n) + race.overhead_s
    assert len(set(race.maps[-80:])) == 1, "at rest"


def test_a_slow_loader_is_relieved_and_not_believed_again_when_it_has_nothing_to_do() -> None:
    """With one rank its batches are there in time: it looks well, and would be slow with three."""
    starved = Slot(lambda _: 0.1, loads=lambda step: 0.3 if step >= 30 else 0.0)
    race = Race([steady(0.1), steady(0.1), starved], 9)
    race.run(30)
    assert race.counts == (3, 3, 3)
    race.run(300)
    assert race.counts[2] <= 1
    assert race.told("slow")[0].facts["slot"] == "cpu:2"
    assert "waiting for data" in race.told("slow")[0].reason
    assert race.moves <= 5
    assert race.mean_s(200) < 0.5


def test_a_slow_wave_is_followed_with_few_moves() -> None:
    race = Race([steady(0.1), Slot(lambda step: 0.2 + 0.1 * sin(step / 40))], 12)
    race.run(160)
    assert race.moves <= 8


# --- what people ask for -----------------------------------------------------------------------


def test_a_profile_measures_every_size_and_puts_the_map_back() -> None:
    race = Race([steady(0.1), steady(0.1), steady(0.2)], 12)
    race.until((5, 5, 2), within=20)
    race.world.wish("profile")
    race.run(100)
    record = race.world.record(race.world.keys.profile)
    assert record["done"]
    assert [sum(each["slots"].values()) for each in record["points"]] == [3, 2, 1]
    measured = [each["step_s"] for each in record["points"]]
    assert measured == pytest.approx([0.51, 0.61, 1.21], rel=0.1)
    assert race.counts == (5, 5, 2)
    assert race.told("lost") == []


def test_a_slow_slot_without_ranks_in_a_profile_is_not_told_as_emptied() -> None:
    race = Race([steady(0.1), steady(0.1), steady(0.4)], 9)
    race.run(30)
    race.world.wish("profile")
    race.run(60)
    assert race.world.record(race.world.keys.profile)["done"]
    assert [each.facts["emptied"] for each in race.told("slow")] == [False]


def test_what_a_node_holds_moves_to_another_in_one_switch() -> None:
    race = Race([steady(0.1), steady(0.1)], 2)
    race.run(5)
    world = race.world
    world.start("b", slots=2)
    world.advance(2.0)
    race.run(2)
    assert {worker.entered is not None for worker in world.nodes["b"].workers.values()} == {False}
    world.wish("migrate", "a", target="b")
    for _ in range(8):
        world.train(1)
        world.advance(1.0)
    assert len(race.told("migrated")) >= 1
    assert "a/cpu:0 and a/cpu:1 → b/cpu:0 and b/cpu:1" in race.told("migrated")[0].reason
    assert race.told("lost") == []
    assert world.nodes["a"].exit_code == 0
    commit = world.nodes["b"].state.commit
    assert commit is not None
    assert {worker.node for worker in commit.workers} == {"b"}


def test_a_migration_waits_while_its_target_is_not_ready_and_training_goes_on() -> None:
    race = Race([steady(0.1), steady(0.1)], 2)
    race.run(5)
    race.world.wish("migrate", "a", "cpu:0", target="c")
    race.run(10)
    assert race.counts == (1, 1)
    assert any("migration waits for c" in line for line in race.world.trace)


def test_the_leader_writes_down_what_people_the_next_leader_and_the_level_above_need() -> None:
    race = Race([steady(0.1), steady(0.1), between(0.1, 0.4, 20, 10**9)], 9)
    race.run(60)
    world = race.world
    speed = world.record(world.keys.speed)
    assert [each["worker"][2] for each in speed["slow"]] == ["cpu:2"]
    assert speed["former"]["counts"] == {"a/cpu:0": 3, "a/cpu:1": 3, "a/cpu:2": 3}
    offers = world.record(world.keys.proposals)
    assert offers["slots"] == {"cpu": 3}
    assert offers["proposals"][0]["kind"] == "cpu"
    assert offers["proposals"][0]["step_s"] < offers["step_s"]
