"""Slots of one device are planned with what they can do beside each other, and no more of them."""

from fractions import Fraction

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from easyscale.agent import drafts
from easyscale.agent.balance.planner import Place, plan
from easyscale.agent.balance.rebalancing import rebalance
from easyscale.agent.balance.scene import Scene
from easyscale.agent.balance.sharing import Sharing, arrange, device_of, interference, paces
from easyscale.agent.memory import Memory
from easyscale.agent.wants import wanted
from easyscale.balance import ProfilePoint, ProfileRecord
from easyscale.model import LogicalRank, NodeRecord, SlotRecord, WorkerId
from tests.support.views import KEYS, Job, commit, job_spec, launch_settings


def slot(name: str) -> WorkerId:
    return WorkerId("a", "a-boot-1", name, 1)


BIG, BIG_2, SMALL, SMALL_2 = map(slot, ("cuda:0/0", "cuda:0/1", "cuda:1", "cuda:2"))


def record(*points: dict[WorkerId, float]) -> ProfileRecord:
    made = tuple(
        ProfilePoint(
            slots={}, counts=(), step_s=1.0, micro_steps_per_s=1.0, predicted_s=None,
            micro_steps={worker.place: seconds for worker, seconds in point.items()},
        )
        for point in points
    )  # fmt: skip
    return ProfileRecord(
        wish="w", by="", at="", logical_workers=6, planned=len(made), points=made, done=True
    )


#: One alone takes 0.5 s for a micro-step, two beside each other 0.625 s: a factor of 0.8.
MEASURED = record({BIG: 0.625, BIG_2: 0.625, SMALL: 1.0}, {BIG: 0.5})


def sharing(*at_work: WorkerId, profile: ProfileRecord = MEASURED) -> Sharing:
    return Sharing(
        kinds={each.place: "H100" for each in (BIG, BIG_2)},
        held={each.place: 1 for each in at_work},
        measured=frozenset(each.place for each in at_work),
        paces=paces(profile),
    )


def test_only_slots_with_a_number_behind_their_device_share_it() -> None:
    assert device_of("a/cuda:3/1") == "a/cuda:3"
    assert device_of("a/cpu:0/0") == "a/cpu:0"
    assert device_of("a/cuda:3") is None
    assert device_of("slash/in/cuda:3") is None


def test_the_factor_is_what_a_profile_has_measured() -> None:
    assert interference(MEASURED) == {"a/cuda:0": 0.8}
    assert interference(record({BIG: 0.625, BIG_2: 0.625})) == {}, "never one alone"


def test_a_slot_that_was_measured_alone_is_planned_as_fast_as_it_is_beside_another() -> None:
    """EasyScale's case of two executors on the big type, 0.8 each: 5/4 s, 2+2+1+1."""
    second = 10**9
    places = [
        Place(BIG, second // 2, tuple(map(LogicalRank, range(6)))),
        Place(BIG_2, second // 2),  # not measured: its kind, alone, stands in
        Place(SMALL, second),
        Place(SMALL_2, second),
    ]
    arranged = arrange(places, sharing(BIG), logical_workers=6)
    layout = plan(arranged, logical_workers=6)
    assert Fraction(layout.step, second) == Fraction(5, 4)
    counts = {worker: len(ranks) for worker, ranks in layout.ranks.items()}
    assert counts == {BIG: 2, BIG_2: 2, SMALL: 1, SMALL_2: 1}


def test_slots_that_were_measured_beside_each_other_are_not_slowed_twice() -> None:
    places = [Place(BIG, 625, (LogicalRank(0),)), Place(BIG_2, 625, (LogicalRank(1),))]
    arranged = arrange(places, sharing(BIG, BIG_2), logical_workers=2)
    assert [each.micro_step for each in arranged] == [625, 625]
    alone = arrange(places[:1], sharing(BIG, BIG_2), logical_workers=2)
    assert [each.micro_step for each in alone] == [500], "as it is without the other"


def test_a_sharer_that_takes_more_than_it_brings_gets_no_ranks() -> None:
    poor = sharing(BIG, BIG_2, profile=record({BIG: 1.2, BIG_2: 1.2}, {BIG: 0.5}))
    places = [Place(BIG, 1200, (LogicalRank(0),)), Place(BIG_2, 1200, (LogicalRank(1),))]
    assert [p.worker for p in arrange(places, poor, logical_workers=4)] == [BIG]
    both = arrange(places, poor, logical_workers=4, use_all=True)
    assert [each.micro_step for each in both] == [1200, 1200], "after a loss all are used"


def test_how_a_quotient_of_measured_seconds_is_rounded_decides_nothing() -> None:
    """0.3 / 0.1 is a little less than 3 as floats: a step that just fits would not."""
    shared = sharing(BIG, profile=record({BIG: 0.3, BIG_2: 0.3}, {BIG: 0.1}))
    places = [Place(BIG, 100_000_000, (LogicalRank(0),)), Place(BIG_2, 100_000_000)]
    beside = arrange(places, shared, logical_workers=4, use_all=True)
    assert [each.micro_step for each in beside] == [300_000_000, 300_000_000]


def test_what_was_never_profiled_is_left_as_measured() -> None:
    places = [Place(BIG, 500), Place(BIG_2, 700)]
    assert arrange(places, Sharing(), logical_workers=4) == places


@given(
    alone=st.integers(10, 1000),
    ratios=st.lists(st.floats(1.0, 3.0), min_size=1, max_size=3),
    other=st.integers(10, 1000),
    n=st.integers(1, 12),
)
def test_no_number_of_sharers_would_be_faster(
    alone: int, ratios: list[float], other: int, n: int
) -> None:
    workers = [slot(f"cuda:0/{i}") for i in range(len(ratios) + 1)]
    factors = [1.0, *sorted(ratios)]
    points = [dict.fromkeys(workers[: i + 1], alone * factor) for i, factor in enumerate(factors)]
    shared = Sharing(
        kinds={each.place: "k" for each in workers},
        held={workers[0].place: 1},
        measured=frozenset({workers[0].place}),
        paces=paces(record(*points)),
    )
    places = [*(Place(each, alone) for each in workers), Place(SMALL, other)]
    reached = plan(arrange(places, shared, logical_workers=n), logical_workers=n).step
    by_hand = [
        plan(
            [*(Place(w, round(alone * factor)) for w in workers[: i + 1]), Place(SMALL, other)],
            logical_workers=n,
        ).step
        for i, factor in enumerate(factors)
    ]
    assert reached <= min(by_hand) + n, "but for what rounding to whole units does"


def test_the_leader_plans_with_it() -> None:
    names = ("cuda:0/0", "cuda:0/1", "cuda:1", "cuda:2")
    times = (0.5, None, 1.0, 1.0)
    kinds = ("H100", "H100", "T4", "T4")
    slots = tuple(
        SlotRecord(name, kind, slot(name), "in_use" if time else "standby", name, time)
        for name, kind, time in zip(names, kinds, times, strict=True)
    )
    node = NodeRecord(
        node="a", incarnation="a-boot-1", boot_id="b", host="a", address="", slots=slots
    )
    made = commit(1, {BIG: range(4), SMALL: [4], SMALL_2: [5]})
    job = Job(job_spec(logical_workers=6)).leads().put(KEYS.node("a"), node).committed(made)
    present = drafts.ranks_of(made)

    def step_s() -> float:
        return drafts.lay_out(job.view(), map(slot, names), present=present).step / 1e9

    assert step_s() == pytest.approx(1.0), "before it is measured, sharers cost nothing"
    job.put(KEYS.profile, msgspec.structs.replace(MEASURED))
    assert step_s() == pytest.approx(1.25)


def test_ranks_leave_a_sharer_that_takes_more_than_it_brings() -> None:
    poor = record({BIG: 1.2, BIG_2: 1.2}, {BIG: 0.5})
    slots = tuple(
        SlotRecord(each.slot, "H100", each, "in_use", "x", 1.2, spread=0.02, recent_s=1.2)
        for each in (BIG, BIG_2)
    )
    node = NodeRecord(
        node="a", incarnation="a-boot-1", boot_id="b", host="a", address="", slots=slots
    )
    made = commit(1, {BIG: [0, 1], BIG_2: [2, 3]})
    job = Job(job_spec(logical_workers=4)).leads().put(KEYS.node("a"), node).committed(made)
    job.put(KEYS.profile, poor).progress(50, steps_per_s=1 / 2.4)
    view, settings = job.view(), launch_settings()
    memory = Memory(position=50, entered=made.generation, promised=(10, 0.0))
    scene = Scene(view, made, wanted(view, made, settings), memory, settings, 60.0)
    drawn, reason = rebalance(scene)
    assert drawn is not None, reason
    assert {each.worker: len(each.ranks) for each in drawn.assignments} == {BIG: 4, BIG_2: 0}
    assert drawn.step_s == pytest.approx((2.4, 2.0))
