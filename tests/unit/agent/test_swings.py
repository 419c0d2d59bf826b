"""A slot that is fast and slow by turns does not make ranks swing; one that recovers is used."""

from dataclasses import replace

import pytest

from easyscale.agent.balance import swings
from easyscale.agent.balance.swings import follow, note, told, wait_steps, waiting
from easyscale.agent.memory import Memory
from easyscale.agent.settings import Balance
from easyscale.balance import Swing
from easyscale.model import Assignment, NodeRecord, Occasion, Plan, SlotRecord
from easyscale.rendezvous.agreement import JobView
from tests.support.speeds import Race, Slot, between, steady
from tests.support.views import KEYS, Job, commit, job_spec, worker

#: Each simulation plays hundreds of steps of a whole agent.
simulated = pytest.mark.timeout(120)
BALANCE = Balance()
A, B = worker("a/0"), worker("a/1")


def square_wave(period: int, times: float) -> Slot:
    return Slot(lambda step: 0.1 * (times if step // (period // 2) % 2 else 1.0))


def in_turns(*until: int) -> Slot:
    """Well up to the first of these steps, four times slower up to the next, and so on."""
    return Slot(lambda step: 0.1 if sum(step >= each for each in until) % 2 == 0 else 0.4)


# --- simulated ---------------------------------------------------------------------------------


@simulated
@pytest.mark.parametrize(
    ("period", "times", "steps"),
    [(10, 4.0, 400), (20, 4.0, 500), (50, 1.6, 500), (80, 2.5, 600), (120, 4.0, 700)],
)
def test_a_slot_that_alternates_moves_ranks_a_few_times_and_then_none(
    period: int, times: float, steps: int
) -> None:
    race = Race([steady(0.1), steady(0.1), square_wave(period, times)], 9)
    race.run(steps)
    assert 1 <= race.moves <= 5
    assert len(set(race.maps[-steps // 3 :])) == 1, "at rest"
    assert race.counts[2] < 3, "at what it can do for certain"


@simulated
def test_in_a_thousand_steps_of_a_long_period_ranks_move_no_more_than_six_times() -> None:
    race = Race([steady(0.1), steady(0.1), square_wave(200, 4.0)], 9)
    race.run(1000)
    assert race.moves <= 6
    assert len(set(race.maps[-450:])) == 1


@simulated
def test_without_memory_of_swings_they_would_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def forget(plan: Plan, view: JobView, memory: Memory, balance: Balance) -> Memory:
        del plan, view, balance
        return memory

    monkeypatch.setattr(swings, "note", forget)
    race = Race([steady(0.1), steady(0.1), square_wave(20, 4.0)], 9)
    race.run(500)
    assert race.moves > 8


@simulated
def test_who_has_swung_gets_its_ranks_back_when_it_has_been_well_for_a_while() -> None:
    race = Race([steady(0.1), steady(0.1), in_turns(30, 60, 90, 120)], 9)
    race.run(30)
    race.until((4, 4, 1), within=10)
    race.run(60 - race.step)
    assert race.until((3, 3, 3), within=14) > 0, "the first time as soon as ever"
    race.run(90 - race.step)
    race.until((4, 4, 1), within=10)
    race.run(120 - race.step)
    assert wait_steps(1, BALANCE) < race.until((3, 3, 3), within=70)
    assert any("cpu:2 swings: it gets ranks back" in line for line in race.world.trace)


@simulated
def test_while_one_waits_another_that_turns_slow_loses_its_ranks_as_fast_as_ever() -> None:
    race = Race([steady(0.1), between(0.1, 0.4, 130, 10**9), in_turns(30, 60, 90, 125)], 9)
    race.run(90)
    race.until((4, 4, 1), within=10)
    race.run(130 - race.step)
    assert race.counts == (4, 4, 1)
    race.run(12)
    assert race.counts[1] < 3


def steps(*since: tuple[int, float]) -> Slot:
    """A micro-step takes so long from each of these steps on."""
    return Slot(lambda step: next(s for first, s in reversed(since) if step >= first))


@simulated
@pytest.mark.parametrize(
    ("slots", "until"),
    [
        # One is slow for good; the other one by turns, and then for good.
        ([steps((0, 0.1), (100, 0.8), (160, 0.1), (300, 0.8)), steps((0, 0.1), (30, 0.2))], 320),
        # One swings and waits, slow just then; another one becomes hopeless.
        (
            [
                steps((0, 0.1), (330, 2.0)),
                steps((0, 0.1), (20, 0.2)),
                in_turns(40, 70, 110, 140, 230, 260),
            ],
            350,
        ),
    ],
)
def test_ranks_leave_a_slow_slot_at_once_for_one_that_waits(slots: list[Slot], until: int) -> None:
    race = Race(slots, 12)
    race.run(until)
    assert race.mean_s(5) < 1.1 * 2.01, "not what the hopeless one takes"


# --- what is remembered ------------------------------------------------------------------------


def seen(taken_s: float) -> JobView:
    """Two slots that hold three ranks each; the second takes so long for one."""
    slots = tuple(
        SlotRecord(each.slot, "cpu", each, "in_use", "x", s) for each, s in ((A, 0.1), (B, taken_s))
    )
    node = NodeRecord(
        node="a", incarnation=A.incarnation, boot_id="b", host="a", address="", slots=slots
    )
    made = commit(1, {A: range(3), B: range(3, 6)})
    return Job(job_spec(logical_workers=6)).leads().put(KEYS.node("a"), node).committed(made).view()


def plan_of(ranks_of_b: int, occasion: Occasion = Occasion.REBALANCE) -> Plan:
    made = commit(2, {A: range(6 - ranks_of_b), B: range(6 - ranks_of_b, 6)})
    given = tuple(Assignment(member.worker, member.ranks) for member in made.members)
    return Plan(
        generation=made.generation,
        mode=made.mode,
        assignments=given,
        main=made.main,
        reason="",
        occasion=occasion,
    )


def left(position: int, memory: Memory | None = None) -> Memory:
    """Ranks have left the second slot, which was slow, at this position."""
    known = memory or Memory(best={A: 0.1, B: 0.1})
    return note(plan_of(1), seen(0.4), replace(known, position=position), BALANCE)


def came_back(position: int, memory: Memory) -> Memory:
    return note(plan_of(4), seen(0.1), replace(memory, position=position), BALANCE)


def test_each_return_in_vain_makes_the_next_one_wait_longer_up_to_a_bound() -> None:
    waits = [wait_steps(times, BALANCE) for times in range(6)]
    assert waits == [0, 50, 200, 800, 800, 800]
    memory = left(10)
    assert memory.swings == {B: Swing(times=0, slow_s=0.4, until=2010)}
    assert not waiting(memory, BALANCE), "the first return waits for nothing"
    memory = left(30, came_back(20, memory))
    assert memory.swings[B].times == 1
    assert waiting(memory, BALANCE) == {B}
    assert left(50, came_back(40, memory)).swings[B].times == 2


def test_who_is_given_ranks_while_it_is_slow_has_not_come_back() -> None:
    given = note(plan_of(4), seen(0.4), replace(left(10), position=20), BALANCE)
    assert not given.swings[B].is_back
    assert left(30, given).swings[B].times == 0


def test_whoever_gives_or_takes_ranks_for_another_s_sake_does_not_swing() -> None:
    assert set(came_back(20, left(10)).swings) == {B}


def test_emptied_again_after_a_look_is_no_swing() -> None:
    looked = note(plan_of(4, Occasion.PROBE), seen(0.4), left(10), BALANCE)
    assert left(30, looked).swings[B].times == 0


def test_it_waits_until_it_has_been_well_for_so_long_without_a_break() -> None:
    memory = left(30, came_back(20, left(10)))
    for position, taken_s, waits in (
        (40, 0.1, True), (89, 0.1, True), (90, 0.1, False),
        (91, 0.4, True), (100, 0.1, True), (149, 0.1, True), (150, 0.1, False),
    ):  # fmt: skip
        memory = follow(seen(taken_s), replace(memory, position=position), BALANCE)
        assert bool(waiting(memory, BALANCE)) is waits, position


def test_the_next_leader_goes_on_with_what_is_written() -> None:
    memory = left(30, came_back(20, left(10)))
    memory = follow(seen(0.1), replace(memory, position=40), BALANCE)
    assert told(Memory(), BALANCE) == ()
    written = {slot.worker: slot.swing for slot in told(memory, BALANCE)}
    heir = Memory(position=89, swings=written)
    assert heir.swings == memory.swings
    assert waiting(heir, BALANCE) == {B}
    assert not waiting(replace(heir, position=90), BALANCE)
    assert not waiting(Memory(position=89), BALANCE), "without it, the ranks come back at once"


def test_calm_is_forgiven_and_who_goes_on_swinging_is_not_forgotten() -> None:
    memory = left(30, came_back(20, left(10)))
    assert not follow(seen(0.4), replace(memory, position=2030), BALANCE).swings
    for position, taken_s in ((1000, 0.1), (1010, 0.4), (2030, 0.4)):
        memory = follow(seen(taken_s), replace(memory, position=position), BALANCE)
    assert memory.swings[B].until == 3010
