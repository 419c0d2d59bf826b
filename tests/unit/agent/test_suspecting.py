"""A slot that computes slower than it says is found out, also where a move with it was a gain."""

from collections import Counter
from random import Random

import pytest

from easyscale.agent.balance import suspecting
from easyscale.agent.balance.planner import Place, least_step
from easyscale.agent.balance.suspecting import Broken, suspect
from easyscale.agent.memory import Doubt
from easyscale.model import SlotRecord, WorkerId
from tests.support.speeds import Race, Slot, steady
from tests.support.views import worker

simulated = pytest.mark.timeout(90)
A, B, C = (worker(f"a/{i}") for i in range(3))
#: Of a trial and of what it takes to notice and to plan.
WINDOW = 20 + 15


def slots(**taken: float) -> dict[WorkerId, SlotRecord]:
    of = {"a": A, "b": B, "c": C}
    return {
        of[name]: SlotRecord(of[name].slot, "cpu", of[name], "in_use", "x", seconds)
        for name, seconds in taken.items()
    }


def test_of_those_that_gained_the_one_that_gained_most_is_doubted_alone() -> None:
    broken = Broken({A: 4, B: 4, C: 4}, {A: 7, B: 4, C: 5}, work_s=0.7, until=9)
    found = suspect(broken, slots(a=0.05, b=0.1, c=0.1), {})
    assert found == {A: Doubt(found[A].factor, 0.05, 9, (C,))}
    assert found[A].factor == pytest.approx(2.0)


def test_whoever_says_that_it_takes_that_long_is_believed() -> None:
    broken = Broken({A: 4, B: 4}, {A: 7, B: 1}, work_s=0.7, until=9)
    assert suspect(broken, slots(a=0.1, b=0.7), {}) == {}


def test_a_step_that_is_as_long_without_its_ranks_clears_it_and_accuses_the_next() -> None:
    first = {A: Doubt(2.0, 0.05, 9, (C,))}
    broken = Broken({A: 7, B: 4, C: 5}, {A: 4, B: 6, C: 6}, work_s=0.72, until=20)
    found = suspect(broken, slots(a=0.05, b=0.05, c=0.06), first)
    assert found[A].factor == 1.0
    assert found[C] == Doubt(found[C].factor, 0.06, 20)
    assert found[C].factor == pytest.approx(2.0)
    assert B not in found, "it gained, but it was none of the first suspects"
    again = Broken({A: 4, C: 6}, {A: 6, C: 4}, work_s=0.7, until=30)
    assert suspect(again, slots(a=0.05, c=0.06), found)[A].factor == 1.0, "and not once more"


def test_a_step_that_became_shorter_without_its_ranks_confirms_the_doubt() -> None:
    first = {A: Doubt(2.0, 0.05, 9)}
    broken = Broken({A: 7, B: 4}, {A: 5, B: 6}, work_s=0.6, until=20)
    found = suspect(broken, slots(a=0.05, b=0.05), first)
    assert found[A] == first[A]
    assert found[B].factor == pytest.approx(2.0), "another one lies as well"


# --- simulated ---------------------------------------------------------------------------------


def best_step(speeds: list[float], n: int) -> float:
    places = [Place(WorkerId("a", "i", str(i), 0), int(t * 1e9)) for i, t in enumerate(speeds)]
    return least_step(places, n) / 1e9


def settled(race: Race, speeds: list[float]) -> float:
    """What a step takes with the map that the race has come to."""
    counts = Counter(race.maps[-50:]).most_common(1)[0][0]
    return max(n * t for n, t in zip(counts, speeds, strict=True))


def deceived(seed: int) -> tuple[Race, list[float]]:
    """Some slots, of which one claims to be twice as fast and another one is really slow."""
    random = Random(seed)
    speeds = [random.choice([0.05, 0.05, 0.07, 0.1]) for _ in range(random.randint(2, 4))]
    liar, slow = random.sample(range(len(speeds)), 2)
    speeds[slow] *= random.choice([2, 3, 4])
    n = len(speeds) * random.choice([2, 3, 4, 5])
    honest = [steady(each) for each in speeds]
    honest[liar] = Slot(lambda _, taken=speeds[liar]: taken, claims=0.5)  # type: ignore[misc]
    return Race(honest, n, noise=random.choice([0.01, 0.05]), seed=seed), speeds


def a_liar_and_a_straggler() -> Race:
    liar = Slot(lambda _: 0.05, claims=0.5)
    return Race([liar, steady(0.2), steady(0.05), steady(0.05)], 16)


@simulated
def test_a_lie_is_found_out_within_a_window_though_its_move_was_a_gain() -> None:
    race = a_liar_and_a_straggler()
    race.run(8 + WINDOW)
    assert race.counts == (5, 1, 5, 5)
    race.run(100)
    assert race.counts == (5, 1, 5, 5)
    assert race.moves == 2


@simulated
def test_unsuspected_it_would_keep_what_it_claimed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suspecting, "suspect", lambda _broken, _slots, doubts: dict(doubts))
    race = a_liar_and_a_straggler()
    race.run(150)
    assert settled(race, [0.05, 0.2, 0.05, 0.05]) > 1.1 * 0.25


@simulated
@pytest.mark.parametrize("seed", range(12))
def test_whoever_lies_the_map_comes_near_the_optimum_in_a_few_moves(seed: int) -> None:
    race, speeds = deceived(seed)
    race.run(200)
    assert settled(race, speeds) <= 1.1 * best_step(speeds, race.logical_workers)
    assert race.moves <= 8


@simulated
def test_work_beside_the_micro_steps_is_known_though_a_slot_becomes_slower_in_a_trial() -> None:
    slower = Slot(lambda step: 0.4 if step < 14 else 0.5)
    race = Race([steady(0.1), steady(0.1), slower], 9, overhead_s=0.15)
    race.run(60)
    assert race.counts == (4, 4, 1)
    assert race.moves == 1, "nobody is doubted for it"


@simulated
@pytest.mark.parametrize("overhead_s", [0.03, 0.1, 0.3])
def test_work_beside_the_micro_steps_that_grows_with_a_move_ends_at_the_optimum(
    overhead_s: float,
) -> None:
    speeds = [0.1, 0.1, 0.4]
    race = Race([steady(each) for each in speeds], 9)
    race.run(6)
    race.overhead_s += overhead_s
    race.run(200)
    assert settled(race, speeds) <= 1.1 * best_step(speeds, 9)
    assert race.moves <= 6
