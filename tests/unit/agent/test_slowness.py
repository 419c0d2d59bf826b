"""A slow slot is found soon where it stands out, later in noise, and noise never is one."""

import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest

from easyscale.agent.balance import slowness
from easyscale.agent.memory import Doubt, Memory
from easyscale.agent.settings import Balance
from easyscale.balance import ProfilePoint, ProfileRecord
from easyscale.model import Commit, NodeRecord, SlotRecord, WorkerId, decode
from tests.support.speeds import Crowd, Hiccups, Race, Recorded, between, steady
from tests.support.views import KEYS, Job, commit, job_spec, worker

SIX = tuple(map(worker, ("a/0", "a/1", "b/0", "b/1", "b/2", "c/0")))
Seconds = Sequence[float]
BALANCE = Balance()
#: A step's micro-steps on either of two slots, against the median of all; four runs.
RECORDED = json.loads((Path(__file__).parent / "cases" / "crowded.json").read_text())
#: A detector that takes every measurement at its word.
EAGER = Balance(slow_noise=0.0, move_noise=0.0)


# --- on a busy machine -------------------------------------------------------------------------

#: Each plays hundreds of steps of a whole agent.
busy = pytest.mark.timeout(90)


def crowded(seed: int, *, slots: int = 2, balance: Balance = BALANCE, times: float = 1.0) -> Race:
    """Slots of one busy machine; the last of them is slower from step 100 on."""
    last = between(0.01, times * 0.01, 100, 10**9)
    return Race(
        [*(steady(0.01) for _ in range(slots - 1)), last], 16, noise=Crowd(seed), balance=balance
    )


@busy
@pytest.mark.parametrize("slots", [2, 4])
@pytest.mark.parametrize("seed", range(8))
def test_noise_as_on_a_busy_machine_makes_no_slot_slow_and_moves_no_rank(
    seed: int, slots: int
) -> None:
    race = crowded(seed, slots=slots)
    race.run(250)
    assert race.told("slow") == []
    assert race.moves == 0


@busy
def test_micro_steps_that_take_eight_times_as_long_now_and_then_hardly_move_a_rank() -> None:
    """Where three such steps in a row were believed, ranks moved a dozen times in each run."""
    races = [Race([steady(0.1)] * 4, 12, noise=Hiccups(0.1, 8.0, seed)) for seed in range(2)]
    for race in races:
        race.run(250)
    assert sum(race.moves for race in races) <= 2


@busy
def test_what_was_recorded_on_a_busy_machine_hardly_ever_makes_a_slot_slow() -> None:
    false = []
    for number, steps in enumerate(RECORDED):
        for first in range(0, len(steps), 25):
            race = Race([steady(0.01)] * 2, 16, noise=Recorded([*steps[first:], *steps[:first]]))
            race.run(2 * len(steps))
            if race.told("slow") or race.moves:
                false.append((number, first))
    assert len(false) <= 1, "in it one slot was twice as slow as the other for a while"


@busy
def test_a_detector_that_believes_every_measurement_would_be_caught() -> None:
    races = [crowded(seed, balance=EAGER) for seed in range(4)]
    races += [Race([steady(0.01)] * 2, 16, noise=Recorded(s), balance=EAGER) for s in RECORDED]
    false = 0
    for race in races:
        race.run(200)
        false += len(race.told("slow")) + race.moves > 0
    assert false > len(races) / 2


@busy
@pytest.mark.parametrize("seed", range(4))
def test_four_times_slower_is_found_in_that_noise_within_few_steps(seed: int) -> None:
    race = crowded(seed, times=4.0)
    race.run(100)
    race.run(15)
    assert [each.facts["slot"] for each in race.told("slow")] == ["cpu:1"]
    race.run(15)
    assert race.counts[1] <= 5


def test_a_slot_that_is_emptied_only_to_use_fewer_is_not_called_what_others_wait_for() -> None:
    race = Race([steady(0.1), steady(0.1), between(0.1, 0.19, 20, 300)], 6, noise=0.0)
    race.run(20)
    race.until((3, 3, 0), within=40)
    race.run(10)
    told = race.told("slow")[-1]
    assert told.facts["emptied"] is True
    assert told.reason.endswith("its kind: emptied, the step is as short without it")


@busy
@pytest.mark.parametrize("seed", range(3))
def test_half_as_slow_again_is_found_in_that_noise_before_300_steps(seed: int) -> None:
    race = crowded(seed, times=1.5)
    race.run(400)
    assert [each.facts["slot"] for each in race.told("slow")] == ["cpu:1"]
    assert race.told("recovered_speed") == []
    assert race.moves == 1


@busy
@pytest.mark.parametrize(("times", "steps"), [(4.0, 10), (1.5, 20), (1.3, 20)])
def test_where_steps_are_steady_a_slow_slot_is_found_sooner(times: float, steps: int) -> None:
    race = Race([steady(0.05), between(0.05, times * 0.05, 50, 10**9)], 16, noise=0.05)
    race.run(50)
    assert race.told("slow") == []
    race.run(steps)
    assert len(race.told("slow")) == 1


# --- look by look ------------------------------------------------------------------------------


class Watched:
    """Slots on machines of two, three and one; a test sets what they measure, step by step."""

    def __init__(self, made: Commit, *, balance: Balance = BALANCE) -> None:
        spec = job_spec(logical_workers=sum(len(member.ranks) for member in made.members))
        self.job = Job(spec).leads().committed(made)
        self.job.node("a", "in_use", "in_use").node("b", "in_use", "in_use", "in_use")
        self.job.node("c", "in_use")
        self.balance = balance
        self.memory = Memory()
        self.step = 0

    def measure(
        self, a: Seconds, b: Seconds, c: Seconds, *, spread: float = 0.02, steps: int = 1
    ) -> list[str]:
        """The places of slots that are told slow after so many steps of these micro-steps."""
        for node, seconds in (("a", a), ("b", b), ("c", c)):
            record = decode(self.job.entries[KEYS.node(node)].value, NodeRecord, source=node)
            slots = tuple(
                msgspec.structs.replace(slot, micro_step_s=each, spread=spread)
                for slot, each in zip(record.slots, seconds, strict=True)
            )
            self.job.put(KEYS.node(node), msgspec.structs.replace(record, slots=slots))
        for _ in range(steps):
            self.step += 1
            self.memory = slowness.notice(
                self.job.progress(self.step).view(),
                replace(self.memory, position=self.step),
                self.balance,
                float(self.step),
            )
        return [w.place for w, slow in sorted(self.memory.slow.items()) if slow.is_told]


def two_each() -> Commit:
    return commit(1, {each: [2 * i, 2 * i + 1] for i, each in enumerate(SIX)})


def test_it_takes_both_the_steps_and_the_seconds() -> None:
    watched = Watched(two_each())
    assert watched.measure([1, 1], [1, 1, 2], [1], steps=5) == []
    assert watched.measure([1, 1], [1, 1, 2], [1]) == ["b/cpu:2"]
    patient = Watched(two_each(), balance=Balance(slow_least_s=20.0))
    assert patient.measure([1, 1], [1, 1, 2], [1], steps=20) == []
    assert patient.measure([1, 1], [1, 1, 2], [1]) == ["b/cpu:2"]


def test_slots_of_one_machine_that_slow_together_are_no_slow_slots() -> None:
    watched = Watched(two_each())
    assert watched.measure([2, 2], [1, 1, 1], [1], steps=200) == []
    assert set(watched.memory.slow) == {*SIX[:2]}, "noticed: they may be emptied"
    assert watched.measure([2, 6], [1, 1, 1], [1], steps=6) == ["a/cpu:1"], "it stands out there"


def test_a_slot_alone_on_its_machine_is_held_against_its_kind() -> None:
    watched = Watched(two_each())
    assert watched.measure([1, 1], [1, 1, 1], [2], steps=6) == ["c/cpu:0"]


def test_a_slow_slot_that_costs_the_step_nothing_is_no_news() -> None:
    """It holds one rank beside slots of two: at 1.8 times it is still done before them."""
    uneven = dict(zip(SIX, ([0, 1], [2, 3], [4, 5], [6, 7], [8], [9, 10]), strict=True))
    watched = Watched(commit(1, uneven))
    assert watched.measure([1, 1], [1, 1, 1.8], [1], steps=50) == []
    assert watched.measure([1, 1], [1, 1, 2.4], [1], steps=50) == ["b/cpu:2"]


def test_the_noisier_the_steps_the_longer_it_takes() -> None:
    needed = []
    for spread in (0.02, 0.1, 0.2, 0.3):
        watched = Watched(two_each())
        looks = range(1, 1000)
        slow = [1, 1], [1, 1, 1.5], [1]
        needed.append(next(n for n in looks if watched.measure(*slow, spread=spread)))
    assert needed == sorted(needed)
    assert needed[0] == 6
    assert needed[-1] == pytest.approx(32 * (4 * 0.3 / 0.5) ** 2, abs=2)


def test_who_goes_to_and_fro_is_told_ever_more_rarely() -> None:
    watched = Watched(two_each())
    told = [
        watched.measure([1, 1], [1, 1, 2 if step // 10 % 2 else 1], [1]) for step in range(1000)
    ]
    changes = sum(a != b for a, b in pairwise(told))
    assert changes == 2, "slow and well again; then never, as long as it swings like that"
    watched.measure([1, 1], [1, 1, 2], [1], steps=10)
    assert watched.measure([1, 1], [1, 1, 2], [1]) == ["b/cpu:2"]


def test_a_slot_alone_of_its_kind_is_held_against_what_it_can_do_for_certain() -> None:
    watched = Watched(commit(1, {SIX[-1]: range(8)}))

    def measure(seconds: float, *, steps: int = 1) -> list[str]:
        return watched.measure([1, 1], [1, 1, 1], [seconds], spread=0.1, steps=steps)

    measure(1.0)
    measure(0.9)
    assert watched.memory.best == {SIX[-1]: pytest.approx(0.99)}, "no lucky window"
    assert measure(2.0, steps=50) == []
    assert measure(2.0) == ["c/cpu:0"]


def test_a_slot_that_waits_for_data_is_slow_and_says_so() -> None:
    watched = Watched(two_each())
    record = decode(watched.job.entries[KEYS.node("c")].value, NodeRecord, source="c")
    waits = msgspec.structs.replace(record.slots[0], data_wait_s=1.5)
    watched.job.put(KEYS.node("c"), msgspec.structs.replace(record, slots=(waits,)))
    assert watched.measure([1, 1], [1, 1, 1], [1], steps=6) == ["c/cpu:0"]
    reason = watched.memory.slow[SIX[-1]].reason
    assert watched.memory.slow[SIX[-1]].data_wait_s == 1.5
    assert reason.startswith("2,500 ms, 2.5 × its kind, 1,500 ms of it waiting for data;")  # noqa: RUF001


def test_what_a_doubted_slot_is_believed_to_take_is_no_waiting_for_data() -> None:
    watched = Watched(two_each())
    record = decode(watched.job.entries[KEYS.node("c")].value, NodeRecord, source="c")
    waits = msgspec.structs.replace(record.slots[0], data_wait_s=0.01)
    watched.job.put(KEYS.node("c"), msgspec.structs.replace(record, slots=(waits,)))
    doubts = {SIX[-1]: Doubt(factor=2.5, micro_step_s=1.0, until=10**9)}
    watched.memory = replace(watched.memory, doubts=doubts)
    assert watched.measure([1, 1], [1, 1, 1], [1], steps=6) == ["c/cpu:0"]
    assert watched.memory.slow[SIX[-1]].reason.startswith("2,525 ms, 2.5 × its kind; holds")  # noqa: RUF001


def test_what_others_are_doubted_of_makes_no_slow_slot_usual() -> None:
    watched = Watched(two_each())
    assert watched.measure([1, 1], [1, 1, 1], [4], steps=6) == ["c/cpu:0"]
    doubts = {one: Doubt(factor=4.0, micro_step_s=1.0, until=10**9) for one in SIX[2:5]}
    watched.memory = replace(watched.memory, doubts=doubts)
    assert "c/cpu:0" in watched.measure([1, 1], [1, 1, 1], [4], steps=20)
    assert not watched.memory.relapses


# --- several slots of one device ------------------------------------------------------------------

#: Two devices with two slots each: a micro-step takes 0.1 s alone there, 0.175 s beside a sibling.
SHARERS = tuple(worker(f"a/{device}/{slot}") for device in (0, 1) for slot in (0, 1))
A0, A1, B0, B1 = SHARERS


def sharers(made: Commit, *seconds: float, profiled: bool = True) -> list[str]:
    """Who of those sharers is told slow after many steps in which each measures this."""
    job = Job(job_spec(logical_workers=8)).leads().committed(made).node("a")
    record = decode(job.entries[KEYS.node("a")].value, NodeRecord, source="a")
    slots = tuple(
        SlotRecord(w.slot, "cpu", w, "in_use", w.place, each, spread=0.02)
        for w, each in zip(SHARERS, seconds, strict=True)
    )
    job.put(KEYS.node("a"), msgspec.structs.replace(record, slots=slots))
    points = (dict.fromkeys(SHARERS, 0.175), {A0: 0.1, B0: 0.1})
    if profiled:
        job.put(KEYS.profile, measured_points(*points))
    memory = Memory()
    for step in range(500):
        view = job.progress(step).view()
        memory = slowness.notice(view, replace(memory, position=step), BALANCE, float(step))
    return [w.place for w, slow in sorted(memory.slow.items()) if slow.is_told]


def measured_points(*points: dict[WorkerId, float]) -> ProfileRecord:
    made = tuple(
        ProfilePoint(
            slots={}, counts=(), step_s=1.0, micro_steps_per_s=1.0, predicted_s=None,
            micro_steps={w.place: seconds for w, seconds in point.items()},
        )
        for point in points
    )  # fmt: skip
    return ProfileRecord(
        wish="w", by="", at="", logical_workers=8, planned=len(made), points=made, done=True
    )


@pytest.mark.parametrize("profiled", [True, False])
def test_who_was_measured_beside_a_sibling_is_not_slow_where_others_are_alone(
    *, profiled: bool
) -> None:
    """It holds nothing since one slot of each device does as much: nothing is wrong with it."""
    alone = commit(1, {A0: range(4), B0: range(4, 8), A1: [], B1: []})
    assert sharers(alone, 0.1, 0.175, 0.1, 0.175, profiled=profiled) == []
    one_left = commit(1, {A0: range(4), B0: range(4, 8), A1: []})
    assert sharers(one_left, 0.1, 0.175, 0.1, 0.175, profiled=profiled) == []


@pytest.mark.parametrize("profiled", [True, False])
def test_a_slot_that_is_slower_than_its_sibling_makes_it_is_found(*, profiled: bool) -> None:
    even = commit(1, {w: [2 * i, 2 * i + 1] for i, w in enumerate(SHARERS)})
    slow = sharers(even, 0.175, 0.175, 0.175, 0.4, profiled=profiled)
    assert slow == ["a/cpu:1/1"]
    if profiled:  # else nothing else is like it
        uneven = commit(1, {A0: [0, 1], A1: [2, 3], B0: [4, 5, 6, 7]})
        assert sharers(uneven, 0.1, 0.175, 0.3, 0.1) == ["a/cpu:1/0"]
